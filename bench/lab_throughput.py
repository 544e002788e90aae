# SPDX-License-Identifier: Apache-2.0
"""Training throughput of the lab's 114M decoder beside the same model in PyTorch.

Usage: lab_throughput.py --lab-step build/cuda/bin/bench_lab_step [--out FILE] [--eager]

The peer is a plain module under bf16 autocast and torch.compile, with torch's fused AdamW; fp32
parameters, 128 x 512 tokens per step, tied head. Ours is timed before and after it, because a
GPU's clock moves with its temperature. One JSON object: medians in ms, tokens per second, ratios.
"""

import argparse
import json
import pathlib
import statistics
import subprocess

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, WIDTH, HEADS, KV_HEADS, MLP, VOCABULARY = 12, 768, 12, 4, 2048, 50257
SIZE = WIDTH // HEADS
BATCH, SEQUENCE = 128, 512


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (WIDTH,), self.weight, 1e-6)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, KV_HEADS * SIZE)
        self.v = nn.Linear(WIDTH, KV_HEADS * SIZE)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, MLP, bias=False)
        self.up = nn.Linear(WIDTH, MLP, bias=False)
        self.down = nn.Linear(MLP, WIDTH, bias=False)
        self.first, self.second = RmsNorm(), RmsNorm()

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        h = self.first(x)
        q = rotate(self.q(h).view(batch, length, HEADS, SIZE).transpose(1, 2), cos, sin)
        k = rotate(self.k(h).view(batch, length, KV_HEADS, SIZE).transpose(1, 2), cos, sin)
        v = self.v(h).view(batch, length, KV_HEADS, SIZE).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = RmsNorm()
        angles = torch.outer(
            torch.arange(SEQUENCE, dtype=torch.float64),
            10000.0 ** -(torch.arange(0, SIZE, 2, dtype=torch.float64) / SIZE),
        )
        self.register_buffer("cos", angles.cos().float())
        self.register_buffer("sin", angles.sin().float())
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def time_peer(compiled: bool, warmup: int, steps: int) -> dict:
    torch.manual_seed(1)
    model = Decoder().cuda()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = [torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), device="cuda") for _ in range(4)]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    loss = None
    for i in range(-warmup, steps):
        if i == 0:
            torch.cuda.synchronize()
        if i >= 0:
            marks[i].record()
        tokens = data[i % 4]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
    marks[steps].record()
    torch.cuda.synchronize()
    ms = statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:], strict=False))
    return {
        "ms": ms,
        "tokens_per_second": 1e3 * BATCH * SEQUENCE / ms,
        "peak_memory_GB": torch.cuda.max_memory_allocated() / 1e9,
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": loss.item(),
    }


def time_ours(program: pathlib.Path, optimizer: str, warmup: int, steps: int) -> dict:
    command = [program, "--task", "wiki-114m", "--optimizer", optimizer]
    command += ["--warmup", str(warmup), "--steps", str(steps)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lab-step", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--eager", action="store_true", help="time the peer without compile too")
    args = parser.parse_args()
    length = (args.warmup, args.steps)
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    result["adamw before"] = time_ours(args.lab_step, "adamw", *length)
    result["torch.compile"] = time_peer(True, *length)
    if args.eager:
        result["torch eager"] = time_peer(False, *length)
    torch.cuda.empty_cache()
    for name in ("adamw", "rode", "rode-final", "muon-rms"):
        result[name] = time_ours(args.lab_step, name, *length)
    peer = result["torch.compile"]["tokens_per_second"]
    ours = [result[n]["tokens_per_second"] for n in ("adamw", "adamw before")]
    result["adamw over torch.compile"] = min(ours) / peer
    result["rode over adamw"] = result["rode"]["tokens_per_second"] / max(ours)
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
