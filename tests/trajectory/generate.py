# SPDX-License-Identifier: Apache-2.0
"""Writes one case for `rode step`: in.safetensors and the oracle's result for it.

python tests/trajectory/generate.py --optimizer rode --shape 96x32 --steps 20 --out DIR
rode step --optimizer rode --steps 20 --in DIR/in.safetensors --out DIR/out.safetensors
"""

import argparse
import ast
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compare import follow  # noqa: E402
from harness import tensors_of  # noqa: E402
from oracles.defaults import DEFAULTS  # noqa: E402
from problems import SPECTRA, parse_shape, problem, with_soap_state  # noqa: E402


def parse_setting(optimizer, text):
    """key=value with the type of the option's default."""
    key, separator, value = text.partition("=")
    if not separator or key not in DEFAULTS[optimizer]:
        known = ", ".join(DEFAULTS[optimizer])
        raise SystemExit(f"--set {text}: expected key=value with one of {known}")
    default = DEFAULTS[optimizer][key]
    if isinstance(default, bool):
        return key, {"true": True, "false": False}[value]
    if isinstance(default, str):
        return key, value
    if isinstance(default, tuple):
        return key, tuple(float(part) for part in value.split(","))
    return key, ast.literal_eval(value)


def expected_tensors(trajectory, name):
    tensors = {f"param.{name}": trajectory.weight}
    for key, value in trajectory.state.items():
        tensors[f"state.{name}.{key}"] = value
    for key, value in getattr(trajectory.rule, "diag", {}).items():
        tensors[f"diag.{name}.{key}"] = value
    return {key: np.ascontiguousarray(value) for key, value in tensors.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--optimizer", required=True, choices=sorted(DEFAULTS))
    parser.add_argument("--shape", default="96x32", help="extents joined by x")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spectrum", choices=sorted(SPECTRA), default="gaussian")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--name", default="w", help="the parameter's name")
    parser.add_argument("--rest", action="store_true", help="step by the rest's rule")
    parser.add_argument(
        "--soap-state", action="store_true", help="start SOAP from full-rank factors"
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write into")
    args = parser.parse_args()

    options = dict(parse_setting(args.optimizer, text) for text in args.set)
    p = problem(parse_shape(args.shape), args.steps, args.seed, args.spectrum)
    if args.soap_state:
        p = with_soap_state(p)
    trajectory = follow(
        args.optimizer, p, options, name=args.name, matrix=False if args.rest else None
    )
    args.out.mkdir(parents=True, exist_ok=True)
    inputs = {key: np.ascontiguousarray(value) for key, value in tensors_of({args.name: p}).items()}
    save_file(inputs, str(args.out / "in.safetensors"))
    save_file(expected_tensors(trajectory, args.name), str(args.out / "expected.safetensors"))
    print(
        f"{args.out}: {args.optimizer}, {args.shape}, {args.steps} steps, seed {args.seed}, "
        f"bound {trajectory.bound():.3e}"
    )


if __name__ == "__main__":
    main()
