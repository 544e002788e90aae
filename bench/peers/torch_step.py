# SPDX-License-Identifier: Apache-2.0
"""Times one optimizer step in PyTorch on the CPU, for `rode bench step --peers`.

Reads the shapes as JSON, {"parameters": [{"name", "shape", "treatment"}, ...]}, and prints
one JSON object: for each peer median_ms, spread_ms and the times. Peers:

  torch_muon      torch.optim.Muon (bf16 products), RMS-matched rate, and torch AdamW
  muon_fp32_loop  the same recurrence as a loop with fp32 torch.mm, and torch AdamW
  rode_loop       RODE, Algorithm 1 of the paper, as a loop with fp32 torch.mm, and torch AdamW
"""

import argparse
import json
import math
import statistics
import sys
import time

import torch

JORDAN = (3.4445, -4.7750, 2.0315)
NS_STEPS = 5


class Rest:
    """AdamW for what the matrix rule does not step; nothing where that is nothing."""

    def __init__(self, parameters):
        self.optimizer = None
        if parameters:
            self.optimizer = torch.optim.AdamW(
                parameters, lr=2.9e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=9e-4, fused=True
            )

    def step(self):
        if self.optimizer is not None:
            self.optimizer.step()


class TorchMuon:
    def __init__(self, matrices, rest):
        self.muon = torch.optim.Muon(
            matrices,
            lr=5.16e-3,
            weight_decay=0.0,
            momentum=0.95,
            nesterov=True,
            ns_coefficients=JORDAN,
            ns_steps=NS_STEPS,
            adjust_lr_fn="match_rms_adamw",
        )
        self.rest = Rest(rest)

    def step(self):
        self.muon.step()
        self.rest.step()


def iterate(x):
    """One Newton-Schulz iteration on a matrix with at least as many columns as rows."""
    a, b, c = JORDAN
    gram = torch.mm(x, x.T)
    polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
    return torch.addmm(x, polynomial, x, beta=a)


class MuonLoop:
    """torch.optim.Muon's recurrence with every product in fp32."""

    def __init__(self, matrices, rest, lr=5.16e-3, momentum=0.95, eps=1e-7):
        self.matrices, self.rest = matrices, Rest(rest)
        self.lr, self.momentum, self.eps = lr, momentum, eps
        self.buffers = [torch.zeros_like(w) for w in matrices]

    @torch.no_grad()
    def step(self):
        for w, buffer in zip(self.matrices, self.buffers):
            buffer.lerp_(w.grad, 1 - self.momentum)
            x = w.grad.lerp(buffer, self.momentum)
            rows, columns = x.shape
            if rows > columns:
                x = x.T
            x = x / x.norm().clamp(min=self.eps)
            for _ in range(NS_STEPS):
                x = iterate(x)
            if rows > columns:
                x = x.T
            w.add_(x, alpha=-self.lr * 0.2 * math.sqrt(max(rows, columns)))
        self.rest.step()


class RodeLoop:
    """RODE as published: every matrix on its own, reprojected after every iteration."""

    def __init__(self, matrices, rest, lr=1.206e-3, lr_rho=2.438e-3, momentum=0.9):
        self.matrices, self.rest = matrices, Rest(rest)
        self.lr, self.lr_rho, self.momentum = lr, lr_rho, momentum
        self.buffers = [torch.zeros_like(w) for w in matrices]

    @torch.no_grad()
    def step(self):
        for w, buffer in zip(self.matrices, self.buffers):
            self.step_matrix(w, buffer)
        self.rest.step()

    def step_matrix(self, w, buffer):
        def project(x, direction):
            return x - (x * direction).sum() * direction

        rho = w.norm()
        u = w / rho
        buffer.copy_(self.momentum * project(buffer, u) + w.grad)
        s = (w.grad * u).sum()
        m = project(buffer, u)
        x = m / m.norm()
        transposed = x.shape[0] > x.shape[1]
        direction = u.T.contiguous() if transposed else u
        if transposed:
            x = x.T.contiguous()
        for _ in range(NS_STEPS):
            x = project(iterate(x), direction)
        q = x.norm()
        d = (x.T if transposed else x) / q
        theta = self.lr * q
        rho_next = torch.maximum(rho - self.lr_rho * s, 1e-6 * rho)
        w.copy_(rho_next * (u * theta.cos() - d * theta.sin()))


PEERS = {"torch_muon": TorchMuon, "muon_fp32_loop": MuonLoop, "rode_loop": RodeLoop}


def tensors(description, seed):
    """Matrices, flattened to (out, rest), and the remaining parameters, with gradients."""
    generator = torch.Generator().manual_seed(seed)
    matrices, rest = [], []
    for entry in description["parameters"]:
        shape = entry["shape"]
        managed = entry["treatment"] == "matrix"
        if managed:
            shape = [shape[0], math.prod(shape[1:])]
        w = torch.nn.Parameter(0.02 * torch.randn(shape, generator=generator))
        w.grad = 0.02 * torch.randn(shape, generator=generator)
        (matrices if managed else rest).append(w)
    return matrices, rest


def measure(make, description, warmup, repeat):
    matrices, rest = tensors(description, seed=0)
    if not matrices:
        raise SystemExit("torch_step: no matrix among the shapes; nothing to compare")
    optimizer = make(matrices, rest)
    times = []
    for i in range(warmup + repeat):
        start = time.perf_counter()
        optimizer.step()
        if i >= warmup:
            times.append(1e3 * (time.perf_counter() - start))
    if not all(bool(torch.isfinite(w).all()) for w in matrices + rest):
        raise SystemExit("torch_step: a peer produced NaN or Inf; its time means nothing")
    return {
        "median_ms": statistics.median(times),
        "spread_ms": max(times) - min(times),
        "times_ms": times,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes-json", required=True, help="file, or - for standard input")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--only", default=",".join(PEERS), help="comma list of peers")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    for name in chosen:
        if name not in PEERS:
            parser.error(f"unknown peer '{name}'; expected some of {', '.join(PEERS)}")

    if arguments.shapes_json == "-":
        description = json.load(sys.stdin)
    else:
        with open(arguments.shapes_json, encoding="utf-8") as file:
            description = json.load(file)
    torch.set_num_threads(arguments.threads)
    result = {"torch": torch.__version__, "threads": arguments.threads}
    for name in chosen:
        result[name] = measure(PEERS[name], description, arguments.warmup, arguments.repeat)
    json.dump(result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
