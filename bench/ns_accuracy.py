#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Error of Muon's orthogonalised momentum against float64: standard, Gram, bf16; by spectrum.

bench/ns_accuracy.py [--rode build/bin/rode] [--shape 768x256]
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
A, B, C = 3.4445, -4.7750, 2.0315


def orthogonalise(x):
    """Five Newton-Schulz steps in float64 on a tall matrix."""
    x = x / np.linalg.norm(x)
    for _ in range(5):
        gram = x.T @ x
        x = A * x + x @ (B * gram + C * gram @ gram)
    return x


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
            expected = -np.sqrt(m / n) * orthogonalise(g.astype(np.float64))
            errors = []
            for setting in ("ns_form=standard", "ns_form=gram", "ns_dtype=bf16"):
                command = [options.rode, "step", "--optimizer", "muon", "--set", "lr=1"]
                command += ["--set", setting, "--in", source, "--out", target]
                subprocess.run(command, check=True)
                step = load_file(target)["param.w"].astype(np.float64)
                errors.append(np.linalg.norm(step - expected) / np.linalg.norm(expected))
            print(f"{spectrum:10s} {errors[0]:.1e}  {errors[1]:.1e}  {errors[2]:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
