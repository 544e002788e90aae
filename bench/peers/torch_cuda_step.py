# SPDX-License-Identifier: Apache-2.0
"""Times one optimizer step in PyTorch on a GPU, for `rode bench step --backend cuda --peers`.

Reads the shapes as JSON, {"parameters": [{"name", "shape", "treatment"}, ...]}, and prints one
JSON object: for each peer median_ms, spread_ms and the times; beside them the machine's
ceilings, matmul_tflops (bf16, 8192^3) and copy_tbps. Peers:

  torch_adamw   torch.optim.AdamW, fused, on every parameter
  torch_muon    torch.optim.Muon (bf16 products), RMS-matched rate, and fused AdamW
  rode_loop     RODE, Algorithm 1 of the paper, one matrix after the other, bf16 products, and
                fused AdamW
  rode_batched  the same with matrices of one shape stacked

Several sets of weights, gradients and state are stepped in turn, so that no step finds its data
in the L2 cache. Without torch or a GPU it prints {"skipped": reason}.
"""

import argparse
import json
import math
import statistics
import sys
import time

try:
    import torch
    from torch_step import JORDAN, NS_STEPS, Rest, TorchMuon
except ImportError as missing:
    print(json.dumps({"skipped": f"{sys.executable} cannot import torch: {missing}"}))
    raise SystemExit(0) from None


class AdamwOnEverything:
    def __init__(self, matrices, rest):
        self.rest = Rest(matrices + rest)

    def step(self):
        self.rest.step()


def dot(x, y):
    """Inner product of each matrix of a stack (or of one matrix), summed in fp32."""
    return torch.sum(x * y, dim=(-2, -1), keepdim=True, dtype=torch.float32)


def norm(x):
    return torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True)


def conditioned(start, direction):
    """Newton-Schulz in bf16, projected onto the tangent space after every iteration."""
    a, b, c = JORDAN
    transposed = start.shape[-2] > start.shape[-1]
    x = start.mT.contiguous() if transposed else start
    u = direction.mT.contiguous() if transposed else direction
    fused = torch.addmm if x.dim() == 2 else torch.baddbmm
    for _ in range(NS_STEPS):
        gram = x @ x.mT
        x = fused(x, fused(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        x = x - dot(x, u).to(x.dtype) * u
    return x.mT if transposed else x


def rode_update(w, grad, buffer, lr=1.206e-3, lr_rho=2.438e-3, momentum=0.9):
    """The new weights; `buffer` is changed in place. For one matrix or a stack of them."""
    rho = norm(w)
    u = w / rho
    buffer.copy_(momentum * (buffer - dot(buffer, u) * u) + grad)
    s = dot(grad, u)
    m = buffer - dot(buffer, u) * u
    x = conditioned((m / norm(m)).bfloat16(), u.bfloat16()).float()
    q = norm(x)
    theta = lr * q
    rho_next = torch.maximum(rho - lr_rho * s, 1e-6 * rho)
    return rho_next * (u * theta.cos() - x * (theta.sin() / q))


class RodeLoop:
    def __init__(self, matrices, rest):
        self.matrices, self.rest = matrices, Rest(rest)
        self.buffers = [torch.zeros_like(w) for w in matrices]

    @torch.no_grad()
    def step(self):
        for w, buffer in zip(self.matrices, self.buffers):
            w.copy_(rode_update(w, w.grad, buffer))
        self.rest.step()


class RodeBatched:
    def __init__(self, matrices, rest):
        self.rest = Rest(rest)
        by_shape = {}
        for w in matrices:
            by_shape.setdefault(tuple(w.shape), []).append(w)
        self.groups = [(group, torch.stack(group).detach().zero_()) for group in by_shape.values()]

    @torch.no_grad()
    def step(self):
        for group, buffer in self.groups:
            grads = torch.stack([w.grad for w in group])
            updated = rode_update(torch.stack(group), grads, buffer)
            torch._foreach_copy_(group, list(updated.unbind()))
        self.rest.step()


PEERS = {
    "torch_adamw": AdamwOnEverything,
    "torch_muon": TorchMuon,
    "rode_loop": RodeLoop,
    "rode_batched": RodeBatched,
}


def tensors(description, seed, device):
    """Matrices, flattened to (out, rest), and the remaining parameters, with gradients."""
    generator = torch.Generator(device).manual_seed(seed)
    matrices, rest = [], []
    for entry in description["parameters"]:
        shape = entry["shape"]
        managed = entry["treatment"] == "matrix"
        if managed:
            shape = [shape[0], math.prod(shape[1:])]
        w = torch.nn.Parameter(0.02 * torch.randn(shape, generator=generator, device=device))
        w.grad = 0.02 * torch.randn(shape, generator=generator, device=device)
        (matrices if managed else rest).append(w)
    return matrices, rest


class Clock:
    """Moments on the device's stream, or by the wall where there is no GPU."""

    def __init__(self, device):
        self.cuda = device == "cuda"
        self.moments = []

    def mark(self):
        if self.cuda:
            self.moments.append(torch.cuda.Event(enable_timing=True))
            self.moments[-1].record()
        else:
            self.moments.append(time.perf_counter())

    def times_ms(self):
        pairs = list(zip(self.moments, self.moments[1:]))
        if self.cuda:
            torch.cuda.synchronize()
            return [before.elapsed_time(after) for before, after in pairs]
        return [1e3 * (after - before) for before, after in pairs]


def timed(call, warmup, repeat, device):
    """Milliseconds of each call(i), back to back: from the end of the one before."""
    clock = Clock(device)
    for i in range(warmup + repeat):
        if i >= warmup:
            clock.mark()
        call(i)
    clock.mark()
    return clock.times_ms()


def measure(make, description, arguments):
    inputs = [tensors(description, seed, arguments.device) for seed in range(arguments.sets)]
    if not inputs[0][0]:
        raise SystemExit("torch_cuda_step: no matrix among the shapes; nothing to compare")
    optimizers = [make(*each) for each in inputs]
    warmup = max(arguments.warmup, 2 * arguments.sets)  # the first steps allocate
    times = timed(
        lambda i: optimizers[i % len(optimizers)].step(), warmup, arguments.repeat, arguments.device
    )
    if not all(bool(torch.isfinite(w).all()) for each in inputs for part in each for w in part):
        raise SystemExit("torch_cuda_step: a peer produced NaN or Inf; its time means nothing")
    return {
        "median_ms": statistics.median(times),
        "spread_ms": max(times) - min(times),
        "times_ms": times,
    }


def ceilings(device, extent=8192, copied=4_000_000_000):
    a, b = (torch.randn(extent, extent, device=device).bfloat16() for _ in range(2))
    product_ms = statistics.median(timed(lambda _: a @ b, 10, 50, device))
    source = torch.zeros(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_ms = statistics.median(timed(lambda _: target.copy_(source), 3, 20, device))
    return {
        "matmul_tflops": 2 * extent**3 / product_ms * 1e-9,
        "copy_tbps": 2 * copied / copy_ms * 1e-9,
    }


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes-json", required=True, help="file, or - for standard input")
    parser.add_argument("--threads", type=int, help="without meaning on a GPU")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--sets", type=int, default=3, help="inputs stepped in turn")
    parser.add_argument("--only", default=",".join(PEERS), help="comma list of peers")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    for name in arguments.only:
        if name not in PEERS:
            parser.error(f"unknown peer '{name}'; expected some of {', '.join(PEERS)}")
    return arguments


def main():
    arguments = parse_arguments()
    if arguments.shapes_json == "-":
        description = json.load(sys.stdin)
    else:
        with open(arguments.shapes_json, encoding="utf-8") as file:
            description = json.load(file)
    cuda = arguments.device == "cuda"
    if cuda and not torch.cuda.is_available():
        print(json.dumps({"skipped": f"torch {torch.__version__} sees no GPU"}))
        return
    result = {"torch": torch.__version__}
    if cuda:
        result["device"] = torch.cuda.get_device_name()
        result.update(ceilings("cuda"))
    else:
        result.update(ceilings("cpu", extent=64, copied=4096))
    for name in arguments.only:
        try:
            result[name] = measure(PEERS[name], description, arguments)
        except torch.cuda.OutOfMemoryError:
            result[name] = {"skipped": "out of memory"}
        if cuda:
            torch.cuda.empty_cache()
    json.dump(result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
