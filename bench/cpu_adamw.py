# SPDX-License-Identifier: Apache-2.0
"""rode.AdamW against torch.optim.AdamW(fused=True) on the CPU, step by step in turn.

Usage: python bench/cpu_adamw.py [--elements N] [--steps N] [--out FILE]

One parameter, fp32. Ratios are of medians over steps that alternate between them, so that a
machine that changes its speed changes all.

rode refuses a step before it has changed anything, so it reads every gradient twice; torch's step
reads it once and would store NaN. `checked` is torch's step behind its own norm of the gradient: the
same promise, and about the same bytes.
"""

import argparse
import json
import pathlib
import statistics
import time

import torch

import rode


def milliseconds(function) -> float:
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3


def rested(function) -> float:
    """The worker threads of torch and of rode spin for a while after a step: not beside the next."""
    time.sleep(0.02)
    return milliseconds(function)


def parameter(elements: int) -> torch.nn.Parameter:
    p = torch.nn.Parameter(torch.randn(elements))
    p.grad = torch.randn(elements)
    return p


def measure(elements: int, threads: int, steps: int) -> dict:
    torch.set_num_threads(threads)
    ours = rode.AdamW([parameter(elements)], lr=1e-4)
    given = parameter(elements)
    theirs = torch.optim.AdamW([given], lr=1e-4, fused=True)

    def checked() -> None:
        if torch.linalg.vector_norm(given.grad).isfinite():
            theirs.step()

    rivals = (ours.step, theirs.step, checked)
    for step in rivals:
        for _ in range(3):
            step()
    columns = list(zip(*([rested(step) for step in rivals] for _ in range(steps)), strict=True))
    own, fused, behind_check = (statistics.median(column) for column in columns)
    fastest, fastest_fused, fastest_checked = (min(column) for column in columns)
    return {
        "threads": threads,
        "elements": elements,
        "rode_ms": own,
        "torch_fused_ms": fused,
        "ratio": own / fused,
        "ratio_of_fastest": fastest / fastest_fused,
        "torch_checked_ms": behind_check,
        "ratio_to_checked": own / behind_check,
        "ratio_to_checked_of_fastest": fastest / fastest_checked,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=pathlib.Path, help="write the figures there as JSON")
    args = parser.parse_args()
    rows = [measure(args.elements, threads, args.steps) for threads in (1, 2)]
    for row in rows:
        print(
            f"{row['threads']} threads: rode {row['rode_ms']:.2f} ms, torch fused "
            f"{row['torch_fused_ms']:.2f} ms, ratio {row['ratio']:.3f} "
            f"(fastest {row['ratio_of_fastest']:.3f}); with a check of the gradient "
            f"{row['torch_checked_ms']:.2f} ms, ratio {row['ratio_to_checked']:.3f} "
            f"(fastest {row['ratio_to_checked_of_fastest']:.3f})"
        )
    if args.out is not None:
        args.out.write_text(json.dumps({"torch": torch.__version__, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
