# SPDX-License-Identifier: Apache-2.0
"""What must not change a result: interruption, threads, backend, a sleeping guard."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import oracles
from compare import assert_weight, distance, follow, tolerance
from harness import assert_same_bits, state_tensors, tensors_of
from oracles.rode import GUARD_SLEEPS, UNSTABLE
from problems import Problem, aligned, problem

VARIANTS = [(name, {}) for name in oracles.DEFAULTS] + [
    ("rode", {"radius": "adaptive", "snr": True}),
    ("rode", {"radius": "fixed", "splits": "m1=2"}),
    ("rode", {"reproject": "final", "nesterov": True, "ns_form": "gram"}),
    ("muon", {"constraint": "hyperball"}),
    ("muon", {"normalize": "rows", "splits": "m1=2"}),
    ("rode", {"normalize": "rows", "nesterov": True}),
    ("mars-m", {"normalize": "rows"}),
    ("soap", {"precondition_frequency": 3}),
    ("ademamix", {"warmup_steps": 15}),
    ("adamw", {"state_dtype": "bf16"}),
    ("rode", {"state_dtype": "bf16"}),
]


def several(steps, shapes):
    return {f"m{i}": problem(shape, steps, seed=i + 1) for i, shape in enumerate(shapes)}


def part(problems, window):
    return {name: Problem(p.weight, p.grads[window], p.seed) for name, p in problems.items()}


@pytest.mark.parametrize("optimizer,options", VARIANTS, ids=str)
def test_continues_bit_for_bit_through_the_file(rode, optimizer, options):
    problems = several(20, [(24, 24), (32, 16), (16, 32), (5, 4, 3), (9,)])
    whole = rode.step(optimizer, tensors_of(problems), steps=20, options=options)
    first = rode.step(
        optimizer, tensors_of(part(problems, slice(0, 10))), steps=10, options=options
    )
    tensors = tensors_of(part(problems, slice(10, 20)))
    tensors.update(state_tensors(first))
    second = rode.step(optimizer, tensors, steps=10, options=options)
    assert_same_bits(whole, second)


@pytest.mark.parametrize("optimizer,options", VARIANTS, ids=str)
def test_threads_do_not_change_a_bit(rode, optimizer, options):
    shapes = [(24, 24), (64, 96), (64, 96), (300, 70), (70, 300), (2, 3, 5), (30011,)]
    if optimizer != "soap":
        shapes.append((256, 768))
    tensors = tensors_of(several(3, shapes))
    one = rode.step(optimizer, tensors, steps=3, threads=1, options=options)
    for threads in (2, 5):
        assert_same_bits(
            one, rode.step(optimizer, tensors, steps=3, threads=threads, options=options)
        )


# The reference keeps its state in full precision, whatever state_dtype says.
FULL_STATE = [case for case in VARIANTS if "state_dtype" not in case[1]]


@pytest.mark.parametrize("optimizer,options", FULL_STATE, ids=str)
def test_reference_backend_agrees(rode, optimizer, options):
    shapes = (
        [(24, 24), (1, 1), (5,)]
        if optimizer == "soap"
        else [(24, 24), (40, 24), (12, 20), (1, 1), (5,)]
    )
    problems = {
        f"m{i}": problem(shape, 4, seed=3, spectrum="spaced") for i, shape in enumerate(shapes)
    }
    tensors = tensors_of(problems)
    fast = rode.step(optimizer, tensors, steps=4, options=options, backend="cpu")
    slow = rode.step(optimizer, tensors, steps=4, options=options, backend="reference")
    assert set(fast) == set(slow)
    for name, p in problems.items():
        rule = {k: v for k, v in options.items() if k != "ns_form"}
        trajectory = follow(optimizer, p, rule, name=name)
        assert_weight(slow[f"param.{name}"], trajectory, what=f"reference {name}")
        error = distance(fast[f"param.{name}"], slow[f"param.{name}"])
        assert error <= trajectory.bound(), f"{name}: {error:.3e}"


def test_several_matrices_of_one_shape_step_like_each_alone(rode):
    problems = several(5, [(48, 16)] * 5 + [(16, 48)] * 3)
    together = rode.step("rode", tensors_of(problems), steps=5)
    for name, p in problems.items():
        assert_weight(together[f"param.{name}"], follow("rode", p), what=name)


def test_one_gradient_for_every_step_equals_it_written_out(rode):
    p = problem((24, 16), 1)
    written_out = Problem(p.weight, p.grads * 4, p.seed)
    for optimizer in ("rode", "muon", "adamw"):
        once = rode.step(optimizer, tensors_of({"w": p}), steps=4)
        assert_same_bits(once, rode.step_problem(optimizer, written_out))


@pytest.mark.parametrize("shape,steps", [((96, 32), 1), ((256, 768), 2), ((1, 7), 3)])
def test_guarded_equals_every_while_the_guard_sleeps(rode, shape, steps):
    p = problem(shape, steps, seed=1)
    # A margin for fp32: the engine's t must lie on the same side of the threshold.
    assert follow("rode", p, {"reproject": "every"}).rule.max_t < 0.98 * GUARD_SLEEPS
    every = rode.step_problem("rode", p, options={"reproject": "every"})
    assert_same_bits(every, rode.step_problem("rode", p, options={"reproject": "guarded"}))


def test_guarded_differs_from_every_once_the_guard_acts(rode):
    p = aligned((48, 16), 1)
    assert follow("rode", p, {"reproject": "every"}).rule.max_t > 2 * GUARD_SLEEPS
    every = rode.step_problem("rode", p, options={"reproject": "every"})
    guarded = rode.step_problem("rode", p, options={"reproject": "guarded"})
    assert not torch.equal(every["param.w"], guarded["param.w"])


@pytest.mark.parametrize("fresh", [1.0, 2.0])
def test_every_explodes_where_guarded_and_final_stay_healthy(rode, fresh):
    p = aligned((768, 256), fresh=fresh)
    per_column = lambda output: float(output["diag.w.q"].reshape(-1)[0]) / math.sqrt(256)
    done, target = rode.try_step("rode", tensors_of({"w": p}), options={"reproject": "every"})
    # Past fp32's range the engine may refuse instead of writing what is not finite.
    if done.returncode == 0:
        every = load_file(str(target))
        assert not per_column(every) < 1e3, "reproject=every no longer diverges here"
    else:
        assert done.returncode == 1 and "'w'" in done.stderr, done.stderr
    for reproject in ("guarded", "final"):
        output = rode.step_problem("rode", p, options={"reproject": reproject})
        assert 0 < per_column(output) < UNSTABLE
        assert torch.isfinite(output["param.w"]).all()
        assert_weight(output["param.w"], follow("rode", p, {"reproject": reproject}))


def test_radius_is_the_norm_that_was_asked_for(rode):
    p = problem((64, 48), 20)
    output = rode.step_problem("rode", p)
    norm = float(output["param.w"].double().norm())
    assert abs(norm - float(output["diag.w.rho_next"])) <= 2.0**-20 * norm
    start = np.linalg.norm(p.weight.astype(np.float64))
    for optimizer, options in [
        ("rode-fixed", {}),
        ("muon-normproj", {}),
        ("muon", {"constraint": "hyperball"}),
    ]:
        fixed = rode.step_problem(optimizer, p, options=options)
        assert abs(float(fixed["param.w"].double().norm()) - start) <= 2.0**-20 * start
        assert abs(float(fixed["state.w.radius"]) - start) <= tolerance(1) * start
