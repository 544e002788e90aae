# SPDX-License-Identifier: Apache-2.0
"""Runs the command line binary on safetensors files; PyTorch reads and writes them."""

import os
import subprocess
from pathlib import Path

# The oracles' matrices are too small for threads, which numpy's BLAS would start anyway; the binary
# keeps the caller's environment.
ENVIRONMENT = dict(os.environ)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120


def binary_path():
    path = Path(os.environ.get("RODE_BIN", ROOT / "build" / "bin" / "rode"))
    return path if path.is_absolute() else ROOT / path


def step_binary_path():
    """The program for tests that only step: RODE_STEP_BIN may name one that loads no LibTorch."""
    return ROOT / os.environ.get("RODE_STEP_BIN", binary_path())


def option_text(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (tuple, list)):
        return ",".join(option_text(item) for item in value)
    return repr(value) if isinstance(value, float) else str(value)


def to_torch(value):
    if isinstance(value, torch.Tensor):
        return value.contiguous()
    return torch.from_numpy(np.array(value, order="C"))


def tensors_of(problems):
    """The input tensors of `rode step` for problems by parameter name."""
    tensors = {}
    for name, p in problems.items():
        tensors[f"param.{name}"] = p.weight
        for k, grad in enumerate(p.grads):
            tensors[f"grad@{k}.{name}" if p.steps > 1 else f"grad.{name}"] = grad
        for key, value in p.state.items():
            tensors[f"state.{name}.{key}"] = value
    return tensors


class Rode:
    """The binary, with a scratch directory for its files."""

    def __init__(self, binary, scratch):
        self.binary = binary
        self.scratch = Path(scratch)
        self.count = 0

    def program(self, command):
        """Loading LibTorch takes half a second per call, which steps and data need nothing of."""
        light = command in ("step", "data") and self.binary == binary_path()
        return str(step_binary_path() if light else self.binary)

    def call(self, *arguments):
        """Runs with the arguments as given; the result carries code, stdout, stderr."""
        return subprocess.run(
            [self.program(arguments[0] if arguments else ""), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=ENVIRONMENT,
        )

    def write(self, tensors, name=None):
        self.count += 1
        path = self.scratch / (name or f"in{self.count}.safetensors")
        save_file({key: to_torch(value) for key, value in tensors.items()}, str(path))
        return path

    def step_arguments(
        self,
        optimizer,
        source,
        target,
        *,
        options=None,
        steps=1,
        threads=None,
        backend=None,
        route=None,
        extra=(),
    ):
        arguments = [
            "step",
            "--optimizer",
            optimizer,
            "--in",
            source,
            "--out",
            target,
            "--steps",
            steps,
        ]
        for key, value in (options or {}).items():
            arguments += ["--set", f"{key}={option_text(value)}"]
        for flag, value in (("--threads", threads), ("--backend", backend), ("--route", route)):
            if value is not None:
                arguments += [flag, value]
        return [*arguments, *extra]

    def try_step(self, optimizer, tensors, **kwargs):
        """Steps the tensors; returns the finished process and the output's path."""
        source = self.write(tensors)
        target = self.scratch / f"out{self.count}.safetensors"
        return self.call(*self.step_arguments(optimizer, source, target, **kwargs)), target

    def step(self, optimizer, tensors, **kwargs):
        """Steps the tensors and returns the output file's tensors."""
        done, target = self.try_step(optimizer, tensors, **kwargs)
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return load_file(str(target))

    def step_problem(self, optimizer, p, *, name="w", **kwargs):
        return self.step(optimizer, tensors_of({name: p}), steps=p.steps, **kwargs)


def state_tensors(output):
    """What a continuing run needs from an output file."""
    return {key: value for key, value in output.items() if key.startswith(("param.", "state."))}


def assert_same_bits(a, b, keys=None):
    """Every tensor equal bit for bit (NaN would compare unequal by value)."""
    assert set(a) == set(b)
    for key in keys or a:
        x, y = a[key], b[key]
        assert x.dtype == y.dtype and x.shape == y.shape, key
        same = x.contiguous().view(torch.uint8) if x.dim() else x.reshape(1).view(torch.uint8)
        other = y.contiguous().view(torch.uint8) if y.dim() else y.reshape(1).view(torch.uint8)
        assert torch.equal(same, other), f"{key}: {int((same != other).sum())} bytes differ"
