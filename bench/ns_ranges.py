#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranges of the Newton-Schulz polynomials: the tables of src/rules/newton_schulz_rule.h.

For every triple: the polynomial's interior maximum on x > 0, rounded up to four decimals, and the
largest input of four decimals up to which the output does not exceed it.

bench/ns_ranges.py
"""

import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/trajectory"))

from oracles.matrix import RANGES, TRIPLES  # noqa: E402


def value(abc, x):
    a, b, c = abc
    return x * (a + x**2 * (b + x**2 * c))


def derived(abc):
    """(largest input, largest output) of one iteration."""
    a, b, c = abc
    root = math.sqrt(9 * b * b - 20 * a * c)  # p' = a + 3 b y + 5 c y^2, y = x^2
    output = math.ceil(1e4 * value(abc, math.sqrt((-3 * b - root) / (10 * c)))) / 1e4
    low = math.ceil(1e4 * math.sqrt((-3 * b + root) / (10 * c)))  # from here on it rises
    while value(abc, (low + 1) / 1e4) <= output:
        low += 1
    return low / 1e4, output


def main():
    for name, triples in TRIPLES.items():
        for k, abc in enumerate(triples):
            found = derived(abc)
            note = "" if found == RANGES[name][k] else f"  in use: {RANGES[name][k]}"
            print(f"{name:14s} {k}  input {found[0]:.4f}  output {found[1]:.4f}{note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
