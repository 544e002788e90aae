# SPDX-License-Identifier: Apache-2.0
"""Values are those of the engine: bit for bit what `rode step` gives."""

import pytest
import torch
from conftest import PUBLISHED
from safetensors.torch import load_file, save_file

import rode

STEPS = 4
SHAPES = {"a": (24, 16), "b": (16, 40), "c": (3, 5, 7), "bias": (24,), "scale": ()}

# class, keyword arguments, name on the command line, further settings
CASES = [
    (rode.RODE, {}, "rode", []),
    (rode.RODE, {"snr": True, "nesterov": True}, "rode", ["snr=true"]),
    (rode.RODE, {"preset": "snr", "nesterov": True}, "rode-snr", ["nesterov=true"]),
    (rode.RODE, {"radius": "fixed"}, "rode", ["radius=fixed"]),
    (rode.RODE, {"preset": "fixed"}, "rode-fixed", []),
    (rode.RODE, {"preset": "paper"}, "rode-paper", []),
    (rode.RODE, {"scale": "kernel"}, "rode", ["scale=kernel"]),
    (rode.RODE, {"radius": "adaptive"}, "rode", ["radius=adaptive"]),
    (rode.RODE, {"reproject": "final", "coefficients": "polar_express"}, "rode",
     ["reproject=final", "coefficients=polar_express"]),
    (rode.RODE, {"coefficients": "four"}, "rode", ["coefficients=four", "ns_steps=4"]),
    (rode.Muon, {"coefficients": "four", "ns_steps": 4}, "muon", ["coefficients=four"]),
    (rode.MARSM, {"coefficients": "four"}, "mars-m", ["coefficients=four"]),
    (rode.RODE, {"lr": 0.01, "lr_rho": 0.02, "momentum": 0.8}, "rode",
     ["lr=0.01", "lr_rho=0.02", "momentum=0.8"]),
    (rode.RODE, {"splits": "param.0=3"}, "rode", ["splits=param.0=3"]),
    (rode.Muon, {}, "muon", []),
    (rode.Muon, {"scale": "rms"}, "muon-rms", []),
    (rode.Muon, {"scale": "rms", "constraint": "normproj"}, "muon-normproj", []),
    (rode.Muon, {"constraint": "hyperball"}, "muon", ["constraint=hyperball"]),
    (rode.SOAP, {"precondition_frequency": 2}, "soap", ["precondition_frequency=2"]),
    (rode.MARSM, {}, "mars-m", []),
    (rode.AdEMAMix, {"warmup_steps": 3}, "ademamix", ["warmup_steps=3"]),
    (rode.Lion, {"lr": 0.01}, "lion", ["lr=0.01"]),
    (rode.Adafactor, {}, "adafactor", []),
    (rode.AdamW, {"lr": 0.01, "betas": (0.9, 0.95)}, "adamw", ["lr=0.01"]),
    (rode.AdamW, {}, "adamw", ["lr=1e-3", "betas=0.9,0.999"]),
    (rode.AdamW, {"lr": 0.01, "betas": (0.9, 0.95), "maximize": True}, "adamw",
     ["lr=0.01", "maximize=true"]),
    (rode.SGD, PUBLISHED[rode.SGD], "sgd", []),
    (rode.SGD, {}, "sgd", ["lr=1e-3", "momentum=0", "weight_decay=0"]),
    (rode.SGD, {**PUBLISHED[rode.SGD], "nesterov": True, "maximize": True}, "sgd",
     ["nesterov=true", "maximize=true"]),
]  # fmt: skip


def problem(dtype: torch.dtype):
    weights = [torch.randn(shape).to(dtype) for shape in SHAPES.values()]
    grads = [[torch.randn(shape).to(dtype) for shape in SHAPES.values()] for _ in range(STEPS)]
    return weights, grads


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "options", "name", "settings"), CASES)
def test_values_are_the_engines_bit_for_bit(cli, tmp_path, dtype, kind, options, name, settings):
    rounding = "nearest"
    if dtype is torch.bfloat16:
        rounding = "stochastic"
        options = {**options, "rounding": rounding, "seed": 7}
        settings = [*settings, f"rounding={rounding}", "seed=7"]
    weights, grads = problem(dtype)
    tensors = {f"param.param.{i}": w for i, w in enumerate(weights)}
    for t, row in enumerate(grads):
        tensors.update((f"grad@{t}.param.{i}", g) for i, g in enumerate(row))
    save_file(tensors, tmp_path / "in.safetensors")
    arguments = [part for setting in settings for part in ("--set", setting)]
    # One rule for all where the optimizer has one: torch has one rate for a group.
    everything = issubclass(kind, (rode.AdamW, rode.SGD, rode.AdEMAMix, rode.Adafactor, rode.Lion))
    arguments += ["--override", "*=matrix"] if everything else ["--route", "language"]
    cli(
        "step", "--optimizer", name, "--steps", STEPS, *arguments,
        "--in", tmp_path / "in.safetensors", "--out", tmp_path / "out.safetensors",
    )  # fmt: skip
    expected = load_file(tmp_path / "out.safetensors")

    params = [torch.nn.Parameter(w.clone()) for w in weights]
    optimizer = kind(params, **options)
    for row in grads:
        for p, g in zip(params, row, strict=True):
            p.grad = g.clone()
        optimizer.step()
    for i, p in enumerate(params):
        assert torch.equal(p.detach(), expected[f"param.param.{i}"]), i
        assert not torch.equal(p.detach(), weights[i]), i
        for key, value in optimizer.state[p].items():
            assert torch.equal(value, expected[f"state.param.{i}.{key}"]), (i, key)
    states = sum(len(entries) for entries in optimizer.state.values())
    assert states == sum(key.startswith("state.") for key in expected)


def test_diagnostics_are_those_of_the_command_line(cli, tmp_path):
    w, g = torch.randn(12, 8), torch.randn(12, 8)
    save_file({"param.w": w, "grad.w": g}, tmp_path / "in.safetensors")
    cli("step", "--optimizer", "rode", "--in", tmp_path / "in.safetensors",
        "--out", tmp_path / "out.safetensors")  # fmt: skip
    expected = load_file(tmp_path / "out.safetensors")
    p = torch.nn.Parameter(w)
    p.grad = g
    optimizer = rode.RODE([p])
    optimizer.step()
    row = optimizer.diagnostics()["matrices"]["param.0"]
    for key, value in row.items():
        assert torch.tensor(value, dtype=torch.float32) == expected[f"diag.w.{key}"].float(), key
