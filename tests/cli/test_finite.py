# SPDX-License-Identifier: Apache-2.0
"""NaN and Inf in weights and state, and steps that overflow: refused, and nothing is written."""

import numpy as np
import pytest
import torch

import oracles
from harness import Rode, state_tensors, tensors_of
from problems import problem

FAILED = 1
# What the rate cannot make overflow: the norm of the result is a given one.
ON_A_SPHERE = ("rode-fixed", "muon-normproj")
WHERE = {
    "cpu": [],
    "reference": ["--backend", "reference"],
    "cuda": ["--device", "cuda"],
}


@pytest.fixture(scope="module")
def has_cuda(binary, tmp_path_factory):
    rode = Rode(binary, tmp_path_factory.mktemp("probe"))
    done, _ = rode.try_step("sgd", tensors_of({"w": problem((3, 2))}), extra=WHERE["cuda"])
    return done.returncode == 0


@pytest.fixture(params=list(WHERE))
def where(request):
    if request.param == "cuda" and not request.getfixturevalue("has_cuda"):
        pytest.skip("no usable CUDA device")
    return WHERE[request.param]


def refused(rode, optimizer, tensors, where, *words, outputs=(b"as it was",), **kwargs):
    """Exit code 1, the words named, `--out` as it was: a file byte for byte, or none."""
    source = rode.write(tensors)
    target = rode.scratch / "kept.safetensors"
    for before in outputs:
        target.unlink(missing_ok=True)
        if before is not None:
            target.write_bytes(before)
        names = sorted(path.name for path in rode.scratch.iterdir())
        done = rode.call(*rode.step_arguments(optimizer, source, target, extra=where, **kwargs))
        assert done.returncode == FAILED, f"exit {done.returncode}\n{done.stderr}"
        for word in (*words, "nothing was "):  # written, or changed
            assert word in done.stderr, f"{word!r} missing in: {done.stderr}"
        assert "hint" not in done.stderr  # skipping gradients is no remedy
        assert before is None or target.read_bytes() == before  # else: not among the names
        assert sorted(path.name for path in rode.scratch.iterdir()) == names


def two(steps=1):
    return {"a.weight": problem((8, 6), steps, seed=1), "b.bias": problem((7,), steps, seed=2)}


@pytest.mark.parametrize("optimizer", list(oracles.DEFAULTS))
def test_weights_and_state_that_are_not_finite_are_refused(rode, optimizer, where):
    good = tensors_of(two())
    for name, value, word in (("a.weight", np.nan, "NaN"), ("b.bias", -np.inf, "Inf")):
        tensors = {key: np.array(tensor) for key, tensor in good.items()}
        tensors[f"param.{name}"].flat[-1] = value
        last = tensors[f"param.{name}"].size - 1
        refused(rode, optimizer, tensors, where, f"parameter '{name}'", f"weight {last} is {word}")
    stepped = state_tensors(rode.step(optimizer, good, extra=where))
    grads = {key: value for key, value in good.items() if key.startswith("grad")}
    floats = [k for k, t in stepped.items() if k.startswith("state.") and t.is_floating_point()]
    assert floats
    for key, value in zip((floats[0], floats[-1]), (np.nan, np.inf), strict=True):
        damaged = {**stepped, **grads, key: stepped[key].clone()}
        damaged[key].view(-1)[0] = value
        owner = next(name for name in two() if key.startswith(f"state.{name}."))
        refused(rode, optimizer, damaged, where, f"parameter '{owner}'", f"'{key}' is")


@pytest.mark.parametrize("optimizer", list(oracles.DEFAULTS))
def test_a_step_that_overflows_is_refused(rode, optimizer, where):
    p = problem((8, 6))
    options, tensors = {"lr": 3e38}, {"param.w": p.weight, "grad.w": -100 * p.weight}
    if optimizer in ON_A_SPHERE:
        tensors["param.w"] = np.full_like(p.weight, 3e38)
        options = {}
    elif optimizer.startswith("rode") or optimizer == "muown":
        options["lr_rho"] = 3e38
    words = ("parameter 'w'", "overflows", "lower the rates")
    outputs = (b"as it was", None)
    refused(rode, optimizer, tensors, where, *words, outputs=outputs, options=options, steps=10)


def test_state_that_would_overflow_alone_is_refused(rode, where):
    """A matrix of norm zero is held, while its momentum goes on growing."""
    tensors = {
        "param.w": np.zeros((2, 2), np.float32),
        "grad.w": np.full((2, 2), 4e35, np.float32),
        "state.w.momentum": np.full((2, 2), 3.4e38, np.float32),
    }
    reference = where == WHERE["reference"]  # which finds it when it is there
    words = (
        ("'state.w.momentum' is Inf",)
        if reference
        else ("momentum of 'w'", "too large to continue")
    )
    refused(rode, "rode", tensors, where, *words, options={"momentum": 0.9999, "on_zero": "hold"})


def test_frozen_parameters_may_hold_anything(rode, where):
    tensors = {**tensors_of(two()), "param.mask": np.full((3, 3), -np.inf, np.float32)}
    flags = [*where, "--override", "mask=frozen"]
    output = rode.step("adamw", tensors, extra=flags)
    assert torch.equal(output["param.mask"], torch.full((3, 3), -torch.inf))


def test_rates_that_fp32_cannot_hold_are_wrong_usage(rode):
    tensors = tensors_of(two())
    for value, word in (
        ("1e+39", "of at most 3.4e38"),
        ("inf", "a finite number >= 0"),
        ("abc", ""),
    ):
        done, target = rode.try_step("rode", tensors, extra=["--set", f"lr_rho={value}"])
        assert done.returncode == 2 and not target.exists()
        assert f"got '{value}'" in done.stderr and word in done.stderr, done.stderr
