# SPDX-License-Identifier: Apache-2.0
"""Momentum in 8 bits against the oracles: values, blocks, rounding, and what a checkpoint holds."""

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import oracles
from compare import assert_weight, distance, follow
from harness import assert_same_bits, state_tensors, tensors_of
from oracles.int8 import dequantize, quantize
from problems import Problem, problem

INT8 = {"state_dtype": "int8"}
STOCHASTIC = {**INT8, "state_rounding": "stochastic", "seed": 7}
QUANTIZED = [
    "rode",
    "rode-snr",
    "rode-fixed",
    "rode-paper",
    "muon",
    "muon-rms",
    "muon-normproj",
    "mars-m",
    "muown",
    "adamw",
]
REFUSING = sorted(set(oracles.DEFAULTS) - set(QUANTIZED))
# fp32 and double disagree about a whole number where a value lies within about 1e-5 of a tie. Of
# 64 x 600 elements in 6 steps that is a few in ten thousand, each by one part in 127 of its block's
# largest; the rounding itself is a hundred times larger.
TOL = 1e-3


def key_of(optimizer, p):
    return "momentum" if optimizer != "adamw" and p.weight.ndim > 1 else "exp_avg"


def assert_followed(output, trajectory, key, name="w", in_out=False):
    assert_weight(output[f"param.{name}"], trajectory, TOL)
    stored, scales = output[f"state.{name}.{key}"], output[f"state.{name}.{key}_scale"]
    assert stored.dtype == torch.int8 and scales.dtype == torch.float32
    state = trajectory.state
    assert scales.shape == state[f"{key}_scale"].shape
    here = dequantize(stored.double().numpy(), scales.double().numpy(), in_out)
    there = dequantize(state[key], state[f"{key}_scale"], in_out)
    assert distance(here, there) <= TOL * np.linalg.norm(there)
    # Those that differ, differ by one.
    assert np.abs(stored.double().numpy() - state[key]).max() <= 1


@pytest.mark.parametrize("options", [INT8, STOCHASTIC], ids=["nearest", "stochastic"])
@pytest.mark.parametrize(
    "shape", [(64, 600), (40, 256), (257, 3), (8, 5, 60), (700,), (1,)], ids=str
)
@pytest.mark.parametrize("optimizer", QUANTIZED)
def test_follows_the_oracle(rode, optimizer, shape, options):
    p = problem(shape, 6)
    trajectory = follow(optimizer, p, options)
    output = rode.step_problem(optimizer, p, options=options)
    assert_followed(output, trajectory, key_of(optimizer, p))


@pytest.mark.parametrize("options", [INT8, STOCHASTIC], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("optimizer", ["rode", "muon", "mars-m", "adamw"])
def test_matters_more_than_the_tolerance(optimizer, options):
    p = problem((64, 600), 6)
    if optimizer == "rode":  # which moves less than the bound allows for at its default rates
        options = {**options, "scale": "kernel", "lr": 1e-2}
    full = follow(optimizer, p, {k: v for k, v in options.items() if k in ("scale", "lr")})
    rounded = follow(optimizer, p, options)
    apart = distance(full.weight, rounded.weight)
    assert apart > 2 * rounded.bound(TOL)
    stochastic = {**options, **STOCHASTIC}
    other = follow(optimizer, p, {**stochastic, "seed": 8} if options == stochastic else stochastic)
    assert distance(other.weight, rounded.weight) > 2 * rounded.bound(TOL)


@pytest.mark.parametrize("optimizer", ["rode", "muon", "adamw"])
def test_a_transposed_matrix_is_cut_along_its_stored_rows(rode, optimizer):
    p = problem((300, 40), 4)
    trajectory = follow(optimizer, p, INT8, in_out=True)
    output = rode.step_problem(optimizer, p, options=INT8, extra=("--layout", "w=in_out"))
    key = key_of(optimizer, p)
    assert output[f"state.w.{key}_scale"].shape == (300, 1)
    assert_followed(output, trajectory, key, in_out=True)
    p = problem((4, 3, 300), 4)
    trajectory = follow(optimizer, p, INT8, in_out=True)
    output = rode.step_problem(optimizer, p, options=INT8, extra=("--layout", "w=in_out"))
    assert output[f"state.w.{key}_scale"].shape == (12, 2)
    assert_followed(output, trajectory, key, in_out=True)


@pytest.mark.parametrize("optimizer", ["rode", "muon"])
def test_blocks_of_a_split_matrix(rode, optimizer):
    options = {**INT8, "splits": "w=16+48"}
    p = problem((64, 300), 4)
    assert_followed(
        rode.step_problem(optimizer, p, options=options), follow(optimizer, p, options), "momentum"
    )
    options = {**INT8, "splits": "w=256+344"}
    p = problem((20, 600), 4)
    output = rode.step_problem(optimizer, p, options=options, extra=("--layout", "w=in_out"))
    assert_followed(output, follow(optimizer, p, options, in_out=True), "momentum", in_out=True)
    done, _ = rode.try_step(
        optimizer,
        tensors_of({"w": p}),
        steps=4,
        options={**INT8, "splits": "w=3"},
        extra=("--layout", "w=in_out"),
    )
    assert done.returncode != 0
    assert "'w'" in done.stderr and "column 200" in done.stderr and "256" in done.stderr


@pytest.mark.parametrize("optimizer", ["rode", "muon", "mars-m", "adamw"])
def test_a_block_of_zeros_has_scale_zero_and_stays_zero(rode, optimizer):
    # RODE's buffer is projected along a weight that is not zero after the first step.
    p = problem((4, 600), 1 if optimizer == "rode" else 3)
    for g in p.grads:
        g[1, 256:512] = 0
        g[2, 512:] = 0
    output = rode.step_problem(optimizer, p, options=INT8)
    key = key_of(optimizer, p)
    scales, stored = output[f"state.w.{key}_scale"], output[f"state.w.{key}"]
    assert scales[1, 1] == 0 and scales[2, 2] == 0 and int((scales == 0).sum()) == 2
    assert not stored[1, 256:512].any() and not stored[2, 512:].any()
    assert torch.isfinite(output["param.w"]).all()


@pytest.mark.parametrize("optimizer", ["rode", "muon", "mars-m", "adamw"])
def test_tiny_momentum_is_stored_as_zero(rode, optimizer):
    p = problem((4, 300), 2)
    p.grads = [g * np.float32(1e-36) for g in p.grads]
    output = rode.step_problem(optimizer, p, options=INT8)
    key = key_of(optimizer, p)
    assert not output[f"state.w.{key}"].any() and not output[f"state.w.{key}_scale"].any()
    assert torch.isfinite(output["param.w"]).all()


@pytest.mark.parametrize("optimizer", QUANTIZED)
def test_reference_backend_agrees(rode, optimizer):
    problems = {"a": problem((24, 300), 4, seed=3), "b": problem((300,), 4, seed=4)}
    tensors = tensors_of(problems)
    fast = rode.step(optimizer, tensors, steps=4, options=INT8, backend="cpu")
    slow = rode.step(optimizer, tensors, steps=4, options=INT8, backend="reference")
    assert {k: (v.dtype, v.shape) for k, v in fast.items()} == {
        k: (v.dtype, v.shape) for k, v in slow.items()
    }
    for name, p in problems.items():
        trajectory = follow(optimizer, p, INT8, name=name)
        assert_weight(slow[f"param.{name}"], trajectory, what=f"reference {name}")
        assert_weight(fast[f"param.{name}"], trajectory, TOL, what=name)
        key = key_of(optimizer, p)
        assert np.array_equal(slow[f"state.{name}.{key}"].double(), trajectory.state[key])


@pytest.mark.parametrize("options", [INT8, STOCHASTIC], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("optimizer", ["rode", "muon", "mars-m", "adamw"])
def test_continues_bit_for_bit_through_the_file(rode, optimizer, options):
    problems = {
        f"m{i}": problem(s, 8, seed=i + 1) for i, s in enumerate([(24, 300), (7, 5, 3), (400,)])
    }
    part = lambda window: {
        n: Problem(p.weight, p.grads[window], p.seed) for n, p in problems.items()
    }
    whole = rode.step(optimizer, tensors_of(problems), steps=8, options=options)
    source = rode.write(tensors_of(part(slice(0, 5))))
    middle = rode.scratch / "middle.safetensors"
    done = rode.call(*rode.step_arguments(optimizer, source, middle, steps=5, options=options))
    assert done.returncode == 0, done.stderr
    tensors = tensors_of(part(slice(5, 8)))
    tensors.update(state_tensors(load_file(str(middle))))
    with safe_open(str(middle), "pt") as file:
        # The step count, which selects the random bits.
        metadata = {"rode.step": file.metadata()["rode.step"]}
    source = rode.scratch / "second.safetensors"
    save_file(
        {k: torch.as_tensor(v).contiguous() for k, v in tensors.items()}, str(source), metadata
    )
    target = rode.scratch / "end.safetensors"
    done = rode.call(*rode.step_arguments(optimizer, source, target, steps=3, options=options))
    assert done.returncode == 0, done.stderr
    assert_same_bits(whole, load_file(str(target)))


@pytest.mark.parametrize("options", [INT8, STOCHASTIC], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("optimizer", ["rode", "muon", "mars-m", "adamw"])
def test_threads_do_not_change_a_bit(rode, optimizer, options):
    # Blocks that a slice of 65536 elements would cut.
    shapes = [(64, 96), (300, 700), (70, 1300), (2, 3, 500), (200011,)]
    tensors = tensors_of({f"m{i}": problem(s, 2, seed=i + 1) for i, s in enumerate(shapes)})
    one = rode.step(optimizer, tensors, steps=2, threads=1, options=options)
    for threads in (2, 5):
        assert_same_bits(
            one, rode.step(optimizer, tensors, steps=2, threads=threads, options=options)
        )


@pytest.mark.parametrize("optimizer", REFUSING)
def test_other_optimizers_refuse_it_by_name(rode, optimizer):
    done, _ = rode.try_step(optimizer, tensors_of({"w": problem((8, 8), 1)}), options=INT8)
    assert done.returncode != 0
    assert f"[{optimizer}]" in done.stderr and "'state_dtype'" in done.stderr, done.stderr


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("optimizer", ["rode", "muon", "mars-m", "adamw"])
def test_a_gradient_that_is_not_finite_is_refused(rode, optimizer, bad):
    p = problem((8, 300), 2)
    p.grads[1][3, 299] = bad
    done, target = rode.try_step(optimizer, tensors_of({"w": p}), steps=2, options=INT8)
    assert done.returncode == 1 and "'w'" in done.stderr and not target.exists()
    skipped = rode.step(
        optimizer, tensors_of({"w": p}), steps=2, options=INT8, extra=("--on-non-finite", "skip")
    )
    once = rode.step_problem(optimizer, Problem(p.weight, p.grads[:1], p.seed), options=INT8)
    keys = [key for key in once if key.startswith(("param.", "state."))]
    for key in keys:
        assert torch.equal(skipped[key], once[key]), key


@pytest.mark.parametrize("optimizer", ["rode", "muon", "mars-m", "adamw"])
def test_states_load_into_each_other(rode, optimizer):
    p = problem((8, 300), 3)
    after = Problem(p.weight, p.grads[2:], p.seed)
    key = key_of(optimizer, p)
    saved = {
        dtype: rode.step_problem(
            optimizer, Problem(p.weight, p.grads[:2], p.seed), options={"state_dtype": dtype}
        )
        for dtype in ("fp32", "bf16", "int8")
    }
    for source in saved:
        for target in saved:
            tensors = tensors_of({"w": after})
            tensors.update(state_tensors(saved[source]))
            output = rode.step(optimizer, tensors, options={"state_dtype": target})
            assert (output[f"state.w.{key}"].dtype == torch.int8) == (target == "int8")
            assert (f"state.w.{key}_scale" in output) == (target == "int8")
            straight = rode.step_problem(optimizer, p, options={"state_dtype": target})
            moved = distance(straight["param.w"], p.weight)
            assert distance(output["param.w"], straight["param.w"]) <= 0.1 * moved


def test_quantizing_is_the_oracles(rode):
    """From fp32 state to int8: the file's conversion, without a step's arithmetic."""
    p = problem((5, 600), 1)
    momentum = p.weight.copy()
    momentum[2, 256:512] = 0
    p.grads = [np.zeros_like(p.weight)]
    p.state = {"exp_avg": momentum, "exp_avg_sq": momentum**2, "step": np.array([1])}
    output = rode.step_problem("adamw", p, options=INT8)  # m <- 0.9 m: the same whole numbers
    whole, scales = quantize(momentum.astype(np.float64))
    assert np.array_equal(output["state.w.exp_avg"].double(), whole)
    assert np.allclose(output["state.w.exp_avg_scale"], 0.9 * scales, rtol=1e-6, atol=0)
