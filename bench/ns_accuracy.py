#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Error of Muon's orthogonalised momentum against float64: standard, Gram, bf16; by spectrum.

bench/ns_accuracy.py [--rode build/bin/rode] [--shape 768x256] [--coefficients jordan]
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/trajectory"))

from oracles.matrix import TRIPLES, newton_schulz  # noqa: E402


def orthogonalise(x, coefficients):
    """All Newton-Schulz steps in float64."""
    steps = 4 if coefficients == "four" else 5
    return newton_schulz(x / np.linalg.norm(x), coefficients, steps)


def momentum(spectrum, m, n, rng):
    if spectrum == "Gaussian":
        return rng.standard_normal((m, n))
    k = np.arange(1, n + 1)
    values = {"1/k": 1 / k, "1/k^2": 1 / k**2, "rank 8": (k <= 8) * 1.0}[spectrum]
    left, _ = np.linalg.qr(rng.standard_normal((m, n)))
    right, _ = np.linalg.qr(rng.standard_normal((n, n)))
    return (left * values) @ right.T


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rode", default=str(ROOT / "build/bin/rode"))
    parser.add_argument("--shape", default="768x256")
    parser.add_argument("--coefficients", default="jordan", choices=TRIPLES)
    options = parser.parse_args()
    m, n = map(int, options.shape.split("x"))
    rng = np.random.default_rng(0)
    print(f"{options.shape:10s} standard     gram     bf16")
    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/in.safetensors", f"{folder}/out.safetensors"
        for spectrum in ("Gaussian", "1/k", "1/k^2", "rank 8"):
            g = momentum(spectrum, m, n, rng).astype(np.float32)
            w = np.zeros_like(g)
            save_file({"param.w": w, "grad.w": g}, source)
            expected = -np.sqrt(m / n) * orthogonalise(g.astype(np.float64), options.coefficients)
            errors = []
            for setting in ("ns_form=standard", "ns_form=gram", "ns_dtype=bf16"):
                command = [options.rode, "step", "--optimizer", "muon", "--set", "lr=1"]
                command += ["--set", f"coefficients={options.coefficients}"]
                command += ["--set", setting, "--in", source, "--out", target]
                subprocess.run(command, check=True)
                step = load_file(target)["param.w"].astype(np.float64)
                errors.append(np.linalg.norm(step - expected) / np.linalg.norm(expected))
            print(f"{spectrum:10s} {errors[0]:.1e}  {errors[1]:.1e}  {errors[2]:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
