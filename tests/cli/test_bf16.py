# SPDX-License-Identifier: Apache-2.0
"""bf16 parameters and gradients: nearest, stochastic and exact rounding."""

import numpy as np
import pytest
import torch

import oracles
from compare import assert_weight, follow
from harness import assert_same_bits, state_tensors
from problems import Problem, problem

STEPS = 12
# bf16 spacing just above 1: a quarter of it must be kept one time in four.
ULP = 2.0**-7


def in_bf16(value):
    return torch.from_numpy(value).to(torch.bfloat16)


def both_forms(shape=(24, 16), steps=STEPS, seed=5):
    """The same bf16-representable problem as bf16 tensors and as fp32 tensors."""
    p = problem(shape, steps, seed)
    half = {"param.w": in_bf16(p.weight)}
    for k, g in enumerate(p.grads):
        half[f"grad@{k}.w"] = in_bf16(g)
    return half, {key: value.float() for key, value in half.items()}


def continued(tensors, output, window):
    moved = {
        f"grad@{k - window.start}.w": tensors[f"grad@{k}.w"]
        for k in range(window.start, window.stop)
    }
    return {**moved, **state_tensors(output)}


def exact_value(output):
    """fp32 weights out of bf16 and 16 low bits."""
    high = output["param.w"].view(torch.int16).numpy().view(np.uint16).astype(np.uint32)
    low = output["state.w.low_bits"].view(torch.int16).numpy().view(np.uint16).astype(np.uint32)
    return torch.from_numpy(((high << 16) | low).view(np.float32))


ALL = list(oracles.DEFAULTS)


@pytest.mark.parametrize("optimizer", ALL)
@pytest.mark.parametrize("shape", [(24, 16), (33,)])
def test_exact_rounding_equals_fp32_bit_for_bit(rode, optimizer, shape):
    half, full = both_forms(shape)
    exact = rode.step(optimizer, half, steps=STEPS, options={"rounding": "exact"})
    wide = rode.step(optimizer, full, steps=STEPS)
    assert exact["param.w"].dtype == torch.bfloat16
    assert exact["state.w.low_bits"].shape == exact["param.w"].shape
    assert torch.equal(exact_value(exact), wide["param.w"])
    for key, value in wide.items():
        if key.startswith(("state.", "diag.")):
            assert torch.equal(exact[key], value), key


@pytest.mark.parametrize("optimizer", ["rode", "soap", "adamw"])
def test_exact_rounding_continues_through_the_file(rode, optimizer):
    half, _ = both_forms()
    options = {"rounding": "exact"}
    whole = rode.step(optimizer, half, steps=STEPS, options=options)
    start = {
        key: value
        for key, value in half.items()
        if key == "param.w" or int(key[5 : key.index(".")]) < 5
    }
    first = rode.step(optimizer, start, steps=5, options=options)
    second = rode.step(
        optimizer, continued(half, first, range(5, STEPS)), steps=STEPS - 5, options=options
    )
    assert_same_bits(whole, second)


@pytest.mark.parametrize("optimizer", ALL)
def test_nearest_rounding_is_fp32_rounded_once(rode, optimizer):
    half, full = both_forms(steps=1)
    near = rode.step(optimizer, half, options={"rounding": "nearest"})
    wide = rode.step(optimizer, full)
    assert torch.equal(near["param.w"], wide["param.w"].to(torch.bfloat16))
    assert "state.w.low_bits" not in near


def quarter_steps(count=1 << 16):
    """SGD that moves every weight from 1 by a quarter of bf16's spacing a step."""
    tensors = {
        "param.w": torch.ones(count, dtype=torch.bfloat16),
        "grad.w": torch.full((count,), -ULP / 4, dtype=torch.bfloat16),
    }
    options = {"lr_rest": 1.0, "momentum": 0.0, "weight_decay_rest": 0.0}
    return tensors, options


def test_nearest_rounding_loses_small_steps_and_stochastic_keeps_their_mean(rode):
    tensors, options = quarter_steps()
    count = tensors["param.w"].numel()
    near = rode.step("sgd", tensors, options={**options, "rounding": "nearest"}, steps=8)
    assert torch.equal(near["param.w"], tensors["param.w"])

    drawn = rode.step("sgd", tensors, options={**options, "rounding": "stochastic", "seed": 7})
    values = drawn["param.w"].double()
    assert set(values.unique().tolist()) == {1.0, 1.0 + ULP}
    # Five deviations of a binomial count with probability 1/4.
    share = float((values > 1).double().mean())
    assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / count)

    many = rode.step(
        "sgd", tensors, steps=8, options={**options, "rounding": "stochastic", "seed": 7}
    )
    moved = float((many["param.w"].double() - 1).mean())
    deviation = ULP * np.sqrt(8 * 0.25 * 0.75 / count)
    assert abs(moved - 8 * ULP / 4) < 5 * deviation


# docs/numerics.md has these numbers.
@pytest.mark.parametrize(
    ("lr", "nearest", "stochastic"),
    [
        (2e-5, (0.05, 0.15), (0.95, 1.05)),
        (1e-4, (0.3, 0.45), (0.97, 1.03)),
        (1.206e-3, (0.98, 1.02), (0.98, 1.02)),
    ],
    ids=["fine-tuning", "between", "pre-training"],
)
def test_the_default_rounding_keeps_the_move_of_small_steps(rode, lr, nearest, stochastic):
    steps, shape = 40, (96, 64)
    start, full = both_forms(shape, steps)
    options = {"lr": lr, "lr_rho": 0.0, "scale": "kernel"}
    begin = full["param.w"].double()
    moved = rode.step("rode", full, steps=steps, options=options)["param.w"].double() - begin

    def kept(**more):
        """The share of the move in fp32 that bf16 weights have made."""
        output = rode.step("rode", start, steps=steps, options={**options, **more})
        weight = exact_value(output) if "state.w.low_bits" in output else output["param.w"]
        return float(((weight.double() - begin) * moved).sum() / moved.square().sum())

    shares = {word: kept(rounding=word) for word in ("nearest", "stochastic", "exact")}
    assert nearest[0] < shares["nearest"] < nearest[1]
    assert stochastic[0] < shares["stochastic"] < stochastic[1]
    assert shares["exact"] == pytest.approx(1.0, abs=1e-6)
    assert kept() == shares["stochastic"]


def test_stochastic_draws_are_independent_between_steps_and_weights(rode):
    tensors, options = quarter_steps()
    chosen = {**options, "rounding": "stochastic", "seed": 3}
    once = (rode.step("sgd", tensors, options=chosen)["param.w"].double() - 1) / ULP
    twice = (rode.step("sgd", tensors, options=chosen, steps=2)["param.w"].double() - 1) / ULP
    second = twice - once  # zero or one spacing in the second step
    correlation = lambda a, b: float(np.corrcoef(a.numpy(), b.numpy())[0, 1])
    limit = 5 / np.sqrt(once.numel())
    assert abs(correlation(once, second)) < limit
    assert abs(correlation(once[:-1], once[1:])) < limit


def test_stochastic_rounding_is_reproducible_by_its_seed(rode):
    half, _ = both_forms((64, 48))
    run = lambda seed, threads: rode.step(
        "rode", half, steps=STEPS, threads=threads, options={"rounding": "stochastic", "seed": seed}
    )
    first = run(11, 1)
    assert_same_bits(first, run(11, 1))
    assert_same_bits(first, run(11, 5))
    assert not torch.equal(first["param.w"], run(12, 1)["param.w"])


@pytest.mark.parametrize("optimizer", ["rode", "muon", "adamw"])
def test_bf16_weights_follow_the_oracle_exactly_kept(rode, optimizer):
    """bf16 input means the oracle starts from the rounded numbers, and nothing else."""
    half, full = both_forms()
    p = Problem(full["param.w"].numpy(), [full[f"grad@{k}.w"].numpy() for k in range(STEPS)], 5)
    exact = rode.step(optimizer, half, steps=STEPS, options={"rounding": "exact"})
    assert_weight(exact_value(exact), follow(optimizer, p))


def test_fp32_gradients_may_step_bf16_weights(rode):
    half, full = both_forms()
    mixed = {**full, "param.w": half["param.w"]}
    assert_same_bits(rode.step("rode", half, steps=STEPS), rode.step("rode", mixed, steps=STEPS))
