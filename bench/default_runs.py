# SPDX-License-Identifier: Apache-2.0
"""What `rode.RODE(model)` reaches without any rate, beside Muon's defaults and AdamW at its best of
three rates: a small GPT on the bytes of Python's reference (pydoc), started by GPT-2's deviation as
it is and scaled to the width, a small convolutional net and an MLP. A run takes five to twenty
seconds on one core.

    python bench/default_runs.py [--seeds 2,3,4] [--models gpt,gpt-init,conv,mlp]
        [--trial 'rode lr=0.02 scale=angle'] ... [--out bench/results/cpu_default_runs.json]

Rates rise over the first tenth of the steps and fall linearly to a tenth, by torch's LambdaLR;
`--constant` leaves them alone. A run's result is the mean loss over the last 20 of its steps; every
step sees fresh samples. `--out` keeps all runs made so far: what the file has is not run again.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import pydoc_data.topics
import statistics
import time
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import rode

ADAMW_RATES = (3e-4, 1e-3, 3e-3)
TEXT = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items())).encode()


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, deviation, width=96, layers=3, heads=4, length=64):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        for p in self.blocks.parameters():
            if p.ndim == 2:
                p.data *= deviation / 0.02

    def forward(self, x):
        h = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def gpt(seed, deviation=0.02):
    data = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    draw = torch.Generator().manual_seed(seed)
    length, batch = 64, 12

    def loss(model):
        at = torch.randint(len(data) - length - 1, (batch,), generator=draw)
        x = torch.stack([data[i : i + length + 1] for i in at])
        return F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    return Gpt(deviation), loss, 250


def gpt_init(seed):
    """GPT-2's deviation of 0.02 belongs to a width of 768: the same, for the width here."""
    return gpt(seed, 0.02 * math.sqrt(768 / 96))


def conv(seed):
    """Ten classes of gratings under noise: what distinguishes them is local."""
    draw = torch.Generator().manual_seed(seed)
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))

    def loss(model):
        label = torch.randint(10, (48,), generator=draw)
        phase = 2 * math.pi * torch.rand(48, 3, 1, 1, generator=draw)
        angle = math.pi * label / 10
        wave = torch.stack([angle.cos(), angle.sin()], 1) @ grid.flatten(1)
        x = torch.sin(wave.view(48, 1, 16, 16) + phase)
        x = x + 1.5 * torch.randn(48, 3, 16, 16, generator=draw)
        return F.cross_entropy(model(x), label)

    def layer(a, b, stride):
        return [nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

    model = nn.Sequential(
        *layer(3, 16, 1), *layer(16, 32, 2), *layer(32, 32, 2), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10)
    )  # fmt: skip
    return model, loss, 200


def mlp(seed):
    """The labels of a fixed random net."""
    draw = torch.Generator().manual_seed(seed)
    teacher = torch.Generator().manual_seed(1234)
    first = torch.randn(64, 32, generator=teacher) / 8
    second = 3 * torch.randn(32, 10, generator=teacher) / math.sqrt(32)

    def loss(model):
        x = torch.randn(128, 64, generator=draw)
        return F.cross_entropy(model(x), (torch.tanh(2 * x @ first) @ second).argmax(1))

    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    return model, loss, 300


MODELS = {"gpt": gpt, "gpt-init": gpt_init, "conv": conv, "mlp": mlp}


def made(task, seed, make):
    """Model, loss, number of steps and optimizer of a run."""
    torch.manual_seed(seed)
    model, loss, steps = MODELS[task](seed)
    return model, loss, steps, make(model)


def run(task, seed, make, constant):
    model, loss, steps, optimizer = made(task, seed, make)

    def rate(step):
        return 1 if constant else min((step + 1) / (0.1 * steps), 1 - 0.9 * step / steps)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        optimizer.step()
        schedule.step()
        losses.append(value.item())
    return sum(losses[-20:]) / 20


def trial(text):
    """'rode lr=0.02 scale=angle' as a maker of that optimizer."""
    name, *pairs = text.split()
    options = {}
    for key, value in (pair.split("=") for pair in pairs):
        try:
            options[key] = float(value)
        except ValueError:
            options[key] = {"true": True, "false": False}.get(value, value)
    if name == "adamw":
        return lambda model: torch.optim.AdamW(model.parameters(), **options)
    cls = {"rode": rode.RODE, "muon": rode.Muon, "muown": rode.Muown}[name]
    return lambda model: cls(model, **options)


def options_of(optimizer):
    """What the groups say of the rule: a default's value is part of a result."""
    no_options = (
        "params",
        "param_names",
        "route",
        "layout",
        "steps_done",
        "reference_lr",
        "seed",
    )
    return [
        {key: value for key, value in group.items() if key not in no_options}
        for group in optimizer.param_groups
    ]


class Results:
    """The runs of a file, which is replaced as a whole after each one."""

    def __init__(self, path, protocol):
        self.path = path
        self.rows = []
        self.protocol = protocol
        if path is not None and path.exists():
            stored = json.loads(path.read_text())
            self.rows = stored.pop("runs")
            if stored != protocol:
                raise SystemExit(f"{path} has another protocol; move it away: {stored}")

    def row(self, task, name, options):
        options = json.loads(json.dumps(options))  # as a file has them: lists for tuples
        for row in self.rows:
            if (row["model"], row["name"], row["options"]) == (task, name, options):
                return row
        self.rows.append({"model": task, "name": name, "options": options, "losses": {}})
        return self.rows[-1]

    def save(self):
        if self.path is None:
            return
        for row in self.rows:
            # Seed 1 is the one that rates are chosen on: a mean is of the others.
            seeds = [seed for seed in row["losses"] if seed != "1"] or ["1"]
            losses = [row["losses"][seed] for seed in seeds]
            row["mean"] = statistics.mean(losses)
            row.pop("standard_error", None)
            if len(losses) > 1:
                row["standard_error"] = statistics.stdev(losses) / math.sqrt(len(losses))
        rows = ",\n".join(json.dumps(row) for row in self.rows)  # a line each
        head = json.dumps(self.protocol, indent=1).removesuffix("\n}")
        part = self.path.with_suffix(".part")
        part.write_text(f'{head},\n "runs": [\n{rows}\n]}}\n')
        os.replace(part, self.path)


def protocol(constant):
    return {
        "program": "bench/default_runs.py",
        "loss": "training loss, mean of the last 20 steps",
        "schedule": "constant" if constant else "up over 0.1 of the steps, down to 0.1, linear",
        "steps": {task: MODELS[task](1)[2] for task in MODELS},
        "text": {"bytes": len(TEXT), "sha256": hashlib.sha256(TEXT).hexdigest()},
        "machine": platform.machine(),
        "torch": torch.__version__,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seeds", default="1", help="as 2,3,4")
    parser.add_argument("--trial", action="append", default=[], help="besides the default runs")
    parser.add_argument("--constant", action="store_true", help="constant rates")
    parser.add_argument("--only-trials", action="store_true")
    parser.add_argument("--out", type=Path, help="file of results, made or added to")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results = Results(args.out, protocol(args.constant))
    names = [] if args.only_trials else ["muon", "rode"]
    names += [] if args.only_trials else [f"adamw lr={lr:g}" for lr in ADAMW_RATES]
    for task in args.models.split(","):
        for name in names + args.trial:
            began = time.perf_counter()
            make = trial(name)
            row = results.row(task, name, options_of(made(task, 1, make)[3]))
            for seed in args.seeds.split(","):
                if seed not in row["losses"]:
                    row["losses"][seed] = round(run(task, int(seed), make, args.constant), 5)
                    results.save()
            losses = [row["losses"][seed] for seed in args.seeds.split(",")]
            spread = "" if len(losses) == 1 else f"  ({', '.join(f'{x:.3f}' for x in losses)})"
            print(
                f"{task:9} {name:50} {statistics.mean(losses):.3f}{spread}  "
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
