# SPDX-License-Identifier: Apache-2.0
"""What cuBLAS does for seconds on end, at the clock that the chip's power limit leaves.

  python bench/cublas_sustained.py [--seconds 2.5]

The products of Newton-Schulz on the 84 large matrices of the 1.5B decoder, every FLOP of them, with
Gaussian operands (zeros draw half the power), and one large square product. Rates of the first and
of the last twenty launches, then clock and power. Needs PyTorch and a GPU.
"""

import argparse
import subprocess
import time
from collections.abc import Callable

import torch

MATRICES, LONG, SHORT = 84, 8960, 1536
SQUARE = 8192
LAUNCHES = 20


def clock_and_power() -> str:
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()


def sustain(
    name: str,
    seconds: float,
    multiply: Callable[..., torch.Tensor],
    left: torch.Tensor,
    right: torch.Tensor,
    out: torch.Tensor,
) -> None:
    flops = 2.0 * LAUNCHES * left.numel() * right.shape[-1]
    for _ in range(3):
        multiply(left, right, out=out)
    torch.cuda.synchronize()
    rates, begin = [], time.monotonic()
    while time.monotonic() - begin < seconds:
        start = time.monotonic()
        for _ in range(LAUNCHES):
            multiply(left, right, out=out)
        torch.cuda.synchronize()
        rates.append(flops / (time.monotonic() - start) / 1e12)
    print(f"{name:30s} first {rates[0]:.0f}, last {rates[-1]:.0f} TFLOP/s; {clock_and_power()}")


def gaussian(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(*shape, device="cuda") / 50).to(dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.5, help="a product")
    seconds = parser.parse_args().seconds
    for dtype in (torch.bfloat16, torch.float16):
        label = str(dtype).removeprefix("torch.")
        x = gaussian(MATRICES, LONG, SHORT, dtype=dtype)
        p = gaussian(SHORT, SHORT, dtype=dtype)
        y = torch.empty_like(x)
        flat, flat_y = x.view(-1, SHORT), y.view(-1, SHORT)
        sustain(f"{label} X P, one product", seconds, torch.mm, flat, p, flat_y)
        each = p.expand(MATRICES, SHORT, SHORT).contiguous()
        sustain(f"{label} X P, batched", seconds, torch.bmm, x, each, y)
        sustain(
            f"{label} X^T X, batched",
            seconds,
            torch.bmm,
            x.mT,
            x,
            torch.empty_like(each),
        )
    q = gaussian(SQUARE, SQUARE, dtype=torch.bfloat16)
    out = torch.empty_like(q)
    sustain("bfloat16, 8192 x 8192", seconds, torch.mm, q, q, out)
    q.zero_()
    sustain("the same of zeros", seconds, torch.mm, q, q, out)


if __name__ == "__main__":
    main()
