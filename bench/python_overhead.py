# SPDX-License-Identifier: Apache-2.0
"""What a Python step costs over the engine's own, for 100 small parameters on one thread.

Usage: python bench/python_overhead.py [--parameters N] [--out FILE]
"""

import argparse
import json
import pathlib
import statistics
import time

import torch

import rode

# Those of the task files and the command line, where Python has torch's.
OPTIONS = {
    rode.AdamW: {"lr": 1.544e-4, "betas": (0.9, 0.95)},
    rode.SGD: {"lr": 1e-1, "momentum": 0.9, "weight_decay": 5e-4},
    # The same gradient for thousands of steps would grow a radius that learns past fp32's range.
    rode.RODE: {"radius": "fixed"},
}


def microseconds(function) -> float:
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e6


def measure(kind, count: int, scheduled: bool, repeats: int = 2000) -> tuple[float, float]:
    """Medians of the engine's step and of Python's, taken in turn: a machine that changes its
    speed changes both. `scheduled`: both with a new rate every time."""
    params = [torch.nn.Parameter(torch.randn(8, 8)) for _ in range(count)]
    for p in params:
        p.grad = torch.randn(8, 8)
    optimizer = kind(params, **OPTIONS.get(kind, {}))
    optimizer.step()
    engine = optimizer._binding.engine
    group = optimizer.param_groups[0]

    def engine_step():
        if scheduled:
            engine.set_number(0, "lr", group["lr"] * 0.9999)
        engine.step(1.0)

    def step():
        if scheduled:
            group["lr"] *= 0.9999
        optimizer.step()

    times = [(microseconds(engine_step), microseconds(step)) for _ in range(repeats)]
    own, python = (statistics.median(column) for column in zip(*times, strict=True))
    return own, python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=100)
    parser.add_argument("--out", type=pathlib.Path, help="write the figures there as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{args.parameters} parameters of 8 x 8, one thread, medians in us")
    print(f"{'':<20}{'engine':>8}{'python':>8}{'over':>8}")
    rows = []
    for kind in (rode.SGD, rode.AdamW, rode.Muon, rode.RODE):
        for scheduled in (False, True):
            engine, python = measure(kind, args.parameters, scheduled)
            name = kind.__name__ + (", scheduled" if scheduled else "")
            print(f"{name:<20}{engine:>8.1f}{python:>8.1f}{python - engine:>8.1f}")
            rows.append({"step": name, "engine_us": engine, "python_us": python})
    if args.out is not None:
        report = {"parameters": args.parameters, "torch": torch.__version__, "rows": rows}
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
