# SPDX-License-Identifier: Apache-2.0
"""The package on a GPU: values, streams, errors that are known later."""

import copy

import pytest
import torch
from compare import BF16_PRODUCTS_TOL, tolerance
from conftest import every_kind
from cuda_runs import STEPS, Run, assert_equal, capturable, needs_cuda

import rode

pytestmark = needs_cuda

# ---- Values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("products", "tol"), [("fp32", None), ("auto", BF16_PRODUCTS_TOL)])
@every_kind
def test_values_are_those_of_the_cpu(kind, products, tol):
    """Each is within the bound of the oracle (tests/trajectory/compare.py), so they are within
    twice that of each other."""
    matrix = kind in (rode.RODE, rode.Muon, rode.MARSM)
    if not matrix and products != "auto":
        pytest.skip("has no products to choose")
    options = {"ns_dtype": products} if matrix else {}
    here, there = Run(kind, **options), Run(kind, "cpu", **({"ns_dtype": "fp32"} if matrix else {}))
    for run in (here, there):
        run.step(*range(STEPS))
    tol = tol if tol is not None and matrix else tolerance(STEPS)
    for w, expected, start in zip(here.weights(), there.weights(), there.starts(), strict=True):
        moved = torch.linalg.norm(expected - start)
        assert moved > 0
        bound = 2 * (tol * moved + STEPS * 2**-23 * torch.linalg.norm(start))
        assert torch.linalg.norm(w - expected) <= bound
    assert all(v.is_cuda for p in here.params for v in here.optimizer.state[p].values())


@pytest.mark.parametrize("rounding", ["nearest", "stochastic", "exact"])
@every_kind
def test_bf16_parameters(kind, rounding):
    here = Run(kind, dtype=torch.bfloat16, rounding=rounding).step(*range(STEPS))
    there = Run(kind, "cpu", torch.bfloat16, rounding=rounding).step(*range(STEPS))
    matrix = kind in (rode.RODE, rode.Muon, rode.MARSM)
    tol = BF16_PRODUCTS_TOL if matrix else tolerance(STEPS)
    for w, expected, start in zip(here.weights(), there.weights(), there.starts(), strict=True):
        # Where the two differ before rounding, they may round to neighbours, 2^-8 apart.
        rounded = STEPS * 2**-8 * torch.linalg.norm(start)
        assert torch.linalg.norm(w - expected) <= 2 * tol * torch.linalg.norm(w - start) + rounded
    again = Run(kind, dtype=torch.bfloat16, rounding=rounding).step(*range(STEPS))
    assert_equal(here, again)


def test_gradients_and_weights_of_any_form():
    plain, odd = Run(rode.RODE), Run(rode.RODE)
    odd.params[0].data = odd.params[0].data.t().contiguous().t()
    for t in range(STEPS):
        plain.step(t)
        odd.params[0].grad = None
        odd.draw(t)
        odd.params[0].grad = odd.params[0].grad.t().contiguous().t()
        odd.optimizer.step()
        odd.params[0].grad = None  # copies are freed: others may have their memory
        torch.full((48, 64), float("nan"), device="cuda")
    assert not odd.params[0].is_contiguous()
    assert_equal(plain, odd)


def test_steps_take_no_more_memory_after_the_first():
    run = Run(rode.RODE).step(0, 1)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    run.step(*range(20))
    assert torch.cuda.memory_allocated() == before


def test_checkpoints_go_from_device_to_device(tmp_path):
    run, whole = Run(rode.RODE).step(0, 1), Run(rode.RODE).step(0, 1, 2, 3)
    torch.save((run.params, run.optimizer.state_dict()), tmp_path / "run.pt")
    resumed = Run(rode.RODE)
    params, state = torch.load(tmp_path / "run.pt", map_location="cpu", weights_only=False)
    for p, saved in zip(resumed.params, params, strict=True):
        p.data.copy_(saved)
    resumed.optimizer.load_state_dict(state)
    assert_equal(resumed.step(2, 3), whole)
    copied = copy.deepcopy(run)
    copied.step(2, 3)
    assert_equal(copied, whole)


# ---- Streams ------------------------------------------------------------------------------------


@every_kind
def test_steps_run_on_the_current_stream_in_order(kind):
    still, moving = Run(kind), Run(kind)
    streams = [torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.default_stream()]
    for t in range(2 * STEPS):
        still.step(t)
        stream = streams[t % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)  # what comes too early would find old gradients
            moving.step(t)
        torch.cuda.current_stream().wait_stream(stream)
    assert_equal(still, moving)


@capturable
def test_a_step_is_enqueued_and_not_waited_for(kind):
    run = Run(kind).step(0, 1, 2)
    torch.cuda.synchronize()
    run.optimizer.param_groups[0]["lr"] *= 0.5
    torch.cuda._sleep(2_000_000_000)  # about a second
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            run.optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not torch.cuda.current_stream().query(), "step() waited for the device"
    run.optimizer.check()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_another_device_than_the_current_one():
    first, second = Run(rode.RODE, "cuda:0"), Run(rode.RODE, "cuda:1")
    for run in (first, second):
        run.step(*range(STEPS))
    for w, other in zip(first.weights(), second.weights(), strict=True):
        assert torch.equal(w, other)
    with pytest.raises(rode.Error, match=r"cuda:0.*cuda:1"):
        rode.RODE(first.params + second.params).step()


def test_parameters_on_cpu_and_gpu_are_refused_by_name():
    here, there = Run(rode.RODE), Run(rode.RODE, "cpu")
    with pytest.raises(rode.Error, match=r"'param\.0' is on cuda:0, 'param\.4' on cpu"):
        rode.RODE(here.params + there.params).step()


# ---- Errors that are known later ----------------------------------------------------------------


@every_kind
def test_a_bad_gradient_changes_nothing_and_is_told_by_check(kind):
    run, clean = Run(kind).step(0, 1), Run(kind).step(0, 1)
    run.draw(2)
    run.params[0].grad[0, 0] = float("nan")
    run.optimizer.step()  # says nothing
    assert_equal(run, clean)
    with pytest.raises(rode.Error, match=r"'param\.0' holds NaN or Inf"):
        run.optimizer.check()
    run.optimizer.check()  # said once
    assert run.optimizer.refused_steps() == 1
    assert_equal(run.step(2, 3), clean.step(2, 3))
    run.optimizer.check()
    assert run.optimizer.metadata()["rode.step"] == "4"


def test_grad_scaler_skips_a_step_with_inf():
    run, clean = Run(rode.RODE).step(0), Run(rode.RODE).step(0)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    scaler.scale(torch.zeros((), device="cuda"))
    for t, bad in ((1, True), (1, False), (2, False)):
        run.draw(t)
        for p in run.params:
            p.grad *= scaler.get_scale()
        if bad:
            run.params[0].grad[0, 0] = float("inf")
        scaler.step(run.optimizer)
        scaler.update()
    assert_equal(run, clean.step(1, 2))
    assert scaler.get_scale() == 4.0
    assert run.optimizer.refused_steps() == 0
