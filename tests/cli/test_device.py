# SPDX-License-Identifier: Apache-2.0
"""`rode step --device cuda`: the GPU's steps where there is one, a named error where not."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file

from compare import assert_weight, follow
from harness import tensors_of
from problems import problem

FAILED, USAGE = 1, 2
CUDA = ["--device", "cuda"]


def without_device(done):
    return done.returncode == FAILED and "[cuda]" in done.stderr


def step_on_cuda(rode, optimizer, tensors, *flags, **kwargs):
    """The process and its output; skips, with the engine's reason, where there is no GPU."""
    done, target = rode.try_step(optimizer, tensors, extra=[*CUDA, *flags], **kwargs)
    if without_device(done):
        pytest.skip(done.stderr.strip())
    return done, target


def test_without_cuda_the_error_is_named_and_nothing_written(rode):
    done, target = rode.try_step("rode", tensors_of({"w": problem((5, 7))}), extra=CUDA)
    if done.returncode == 0:
        pytest.skip("there is a device")
    assert done.returncode == FAILED and not target.exists()
    errors = [line for line in done.stderr.splitlines() if line.startswith("rode: error:")]
    assert len(errors) == 1 and "[cuda]" in errors[0] and "CUDA" in errors[0], done.stderr


def test_other_devices_and_the_reference_on_one_are_wrong_usage(rode):
    tensors = tensors_of({"w": problem((5, 7))})
    for flags in (["--device", "tpu"], [*CUDA, "--backend", "reference"]):
        done, target = rode.try_step("rode", tensors, extra=flags)
        assert done.returncode == USAGE and not target.exists(), flags
        assert "--device" in done.stderr


def test_help_names_the_device(rode):
    assert "--device" in rode.call("step", "--help").stdout


def test_device_cpu_is_the_default(rode):
    done, _ = rode.try_step(
        "adamw", tensors_of({"w": problem((5, 7))}), extra=["--device", "cpu", "--json"]
    )
    assert done.returncode == 0 and json.loads(done.stdout)["backend"] == "cpu"


@pytest.mark.parametrize("optimizer", ["rode", "muon", "mars-m", "adamw", "adafactor", "sgd"])
def test_cuda_steps_are_the_oracles(rode, optimizer):
    steps = 5
    problems = {"w": problem((33, 17), steps), "bias": problem((19,), steps)}
    full = {"ns_dtype": "fp32"} if optimizer in ("rode", "muon", "mars-m") else {}
    done, target = step_on_cuda(
        rode, optimizer, tensors_of(problems), "--json", steps=steps, options=full
    )
    assert done.returncode == 0, done.stderr
    report, output = json.loads(done.stdout), load_file(str(target))
    assert report["backend"] == "cuda" and report["steps_done"] == steps
    for name, p in problems.items():
        assert_weight(output[f"param.{name}"], follow(optimizer, p), tol=1e-4, what=name)


def test_a_bad_gradient_on_cuda_ends_with_the_same_error(rode):
    p = problem((5, 7), 3)
    p.grads[1][0, 0] = np.nan
    done, target = step_on_cuda(rode, "rode", tensors_of({"w": p}), steps=3)
    assert done.returncode == FAILED and not target.exists()
    assert "gradient of 'w' holds NaN or Inf; nothing was changed" in done.stderr
