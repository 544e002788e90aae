# SPDX-License-Identifier: Apache-2.0
"""What the matrix optimizers share: the 2-D view, its blocks, plain Newton-Schulz."""

from fnmatch import fnmatchcase

import numpy as np

TRIPLES = {
    "jordan": [(3.4445, -4.7750, 2.0315)],
    "you": [
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ],
    "polar_express": [
        (8.15655, -22.48329, 15.87877),
        (4.04293, -2.80892, 0.50002),
        (3.89167, -2.77248, 0.50606),
        (3.28575, -2.36813, 0.46449),
        (2.34654, -1.70978, 0.42324),
    ],
    "four": [
        (8.05794, -22.05219, 15.54071),
        (3.92635, -2.75379, 0.49735),
        (3.45447, -2.48755, 0.47751),
        (2.51153, -1.85245, 0.43883),
    ],
}
# Step k maps [0, input] into [0, output].
RANGES = {
    "jordan": [(1.25, 1.2024)],
    "you": [
        (1.3207, 1.2732),
        (1.3182, 1.2700),
        (1.3130, 1.2473),
        (1.2543, 1.1468),
        (1.2121, 1.1451),
    ],
    "polar_express": [
        (1.02, 1.9917),
        (2.0316, 1.9664),
        (2.0063, 1.8693),
        (1.9092, 1.5756),
        (1.5836, 1.1412),
    ],
    "four": [(1.02, 1.9754), (2.0148, 1.9013), (1.9393, 1.6548), (1.6547, 1.2070)],
}
# Polar Express is derived for spectral norms below 1 by this margin.
MARGIN = {"jordan": 1.0, "you": 1.0, "polar_express": 1.02, "four": 1.0}


def norm(x):
    return float(np.sqrt(np.sum(np.square(x))))


def inner(x, y):
    return float(np.sum(x * y))


def triple(coefficients, k):
    """The polynomial of iteration k; the last one repeats."""
    table = TRIPLES[coefficients]
    return table[min(k, len(table) - 1)]


def guard(coefficients, k, t):
    """The factor after step k that keeps every singular value within the range of the next."""
    table = RANGES[coefficients]
    output = table[min(k, len(table) - 1)][1]
    following = table[min(k + 1, len(table) - 1)][0]
    return min(1.0, following / (output + abs(t)))


def scaled_start(x, coefficients):
    """Over the margin of the set; that of four over the Schatten-4 norm, n^-1/4 or more."""
    if coefficients != "four":
        return x / MARGIN[coefficients]
    return x / max(norm(x.T @ x) ** 0.5, x.shape[1] ** -0.25)


def polynomial(x, abc):
    """a X + b X X^T X + c X (X^T X)^2 for X with no more columns than rows."""
    a, b, c = abc
    gram = x.T @ x
    return a * x + x @ (b * gram + c * (gram @ gram))


def newton_schulz(x, coefficients, steps):
    """`steps` plain iterations from a normalised start, the short side as columns."""
    wide = x.shape[0] < x.shape[1]
    x = scaled_start(x.T if wide else x, coefficients)
    for k in range(steps):
        x = polynomial(x, triple(coefficients, k))
    return x.T if wide else x


def normalized_rows(o, averages, beta):
    """NorMuon: each row over its averaged root mean square; the matrix keeps its norm."""
    size = norm(o)
    if size == 0:
        return o
    averages *= beta
    averages += (1 - beta) * np.mean(np.square(o), axis=1)
    scaled = o / (np.sqrt(averages)[:, None] + 1e-8)
    return scaled * (size / norm(scaled))


class MatrixView:
    """(fan-out, fan-in) view of a tensor, cut into independent blocks along fan-out."""

    def __init__(self, name, shape, splits="", in_out=False):
        self.shape = tuple(shape)
        self.in_out = in_out
        rows = self.fan_out = self.shape[-1] if in_out else self.shape[0]
        self.blocks = []
        start = 0
        for size in _block_sizes(name, rows, splits):
            self.blocks.append(slice(start, start + size))
            start += size

    def matrix(self, tensor):
        if self.in_out:
            return tensor.reshape(-1, self.shape[-1]).T
        return tensor.reshape(self.shape[0], -1)

    def tensor(self, matrix):
        return np.ascontiguousarray(matrix.T if self.in_out else matrix).reshape(self.shape)


def _block_sizes(name, rows, splits):
    for entry in filter(None, splits.split(",")):
        pattern, text = entry.rsplit("=", 1)
        if not fnmatchcase(name, pattern):
            continue
        if "+" in text:
            sizes = [int(size) for size in text.split("+")]
        else:
            sizes = [rows // int(text)] * int(text)
        if sum(sizes) != rows:
            raise ValueError(f"splits {entry} do not cover {rows} rows of {name}")
        return sizes
    return [rows]
