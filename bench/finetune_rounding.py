# SPDX-License-Identifier: Apache-2.0
"""Which share of their updates bf16 weights lose at the paper's fine-tuning rates where results are
rounded to the nearest value: one matrix of Qwen3.5-9B's size with Gaussian weights and gradient.

    python bench/finetune_rounding.py [--size 4096] [--out bench/results/cpu_finetune_rounding.json]
"""

import argparse
import json
import pathlib

import torch

import rode
from rode.finetune import protocol, rounding


def measured(name: str, size: int, multiplier: float) -> float:
    torch.manual_seed(0)
    layer = torch.nn.Linear(size, size, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.normal_(std=0.02)
    layer.weight.grad = torch.randn(size, size).to(torch.bfloat16)
    options = protocol.options_of(name, [], "nearest", 0, published=False)
    scaled = {key: value * multiplier for key, value in options.items() if key.startswith("lr")}
    return rounding.lost_updates(name, {**options, **scaled}, layer)["matrix"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    rows = {}
    for name in protocol.presets():
        # The full rate, and half of it, where the cosine is halfway.
        rows[name] = {str(part): measured(name, given.size, part) for part in (1.0, 0.5)}
        print(
            f"{name:<10}", *(f"{100 * share:6.1f} %" for share in rows[name].values()), flush=True
        )
    result = {
        "size": given.size,
        "lost": rows,
        "weights": "normal, std 0.02",
        "gradient": "normal",
        "rode": rode.__version__,
        "torch": torch.__version__,
    }
    if given.out:
        given.out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
