# SPDX-License-Identifier: Apache-2.0
"""torch.optim's contract: groups, closures, schedulers, gradients of every kind."""

import copy
import warnings
import weakref

import pytest
import torch
from conftest import TinyModel, every_kind, same, train
from torch.optim import lr_scheduler

import rode


@every_kind
def test_is_an_optimizer_and_the_loss_falls(kind):
    model = TinyModel()
    optimizer = kind(model)
    assert isinstance(optimizer, torch.optim.Optimizer)
    losses = train(model, optimizer, 40)
    assert min(losses[-5:]) < losses[0]


def test_live_edits_of_groups_act_at_the_next_step():
    p = torch.nn.Parameter(torch.zeros(3))
    optimizer = rode.SGD([p], lr=1.0, momentum=0.0, weight_decay=0.0)
    p.grad = torch.ones(3)
    for lr in (1.0, 0.5, 0.0, torch.tensor(0.25)):
        before = p.detach().clone()
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        torch.testing.assert_close(before - p, torch.full((3,), float(lr)))
    rate = torch.tensor(0.5)
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()
    rate.fill_(2.0)  # in place
    before = p.detach().clone()
    optimizer.step()
    torch.testing.assert_close(before - p, torch.full((3,), 2.0))
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="lr"):
        optimizer.step()


def test_fixed_options_may_change_too():
    p, q = torch.nn.Parameter(torch.randn(8, 8)), None
    p.grad = torch.randn(8, 8)
    q = torch.nn.Parameter(p.detach().clone())
    q.grad = p.grad
    optimizer, other = rode.Muon([p], ns_steps=5), rode.Muon([q], ns_steps=3)
    optimizer.param_groups[0]["ns_steps"] = 3
    optimizer.step()
    other.step()
    assert torch.equal(p, q)


def test_bad_options_are_value_errors_that_name_them():
    p = torch.nn.Parameter(torch.randn(4, 4))
    with pytest.raises(ValueError, match="'lr': expected a number >= 0, got '-1"):
        rode.RODE([p], lr=-1.0)
    with pytest.raises(rode.Error, match="radius"):
        rode.RODE([p], radius="learnt")
    with pytest.raises(ValueError, match="momentum"):
        rode.Muon([{"params": [p], "momentum": 1.5}])
    with pytest.raises(ValueError, match="route"):
        rode.RODE(TinyModel(), route="langage")
    with pytest.raises(TypeError):
        rode.RODE(p)
    with pytest.raises(ValueError, match="empty parameter list"):
        rode.RODE([])


def test_lr_rho_follows_a_scheduler():
    def radii(couple, scheduled):
        p = torch.nn.Parameter(torch.eye(4) * 3)
        optimizer = rode.RODE([p], lr=0.0 if not scheduled else 1e-3, lr_rho=0.1,
                              couple_lr_rho=couple, radius="learned")  # fmt: skip
        if scheduled:
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.25)
        p.grad = torch.eye(4)
        optimizer.step()
        return optimizer.diagnostics()["matrices"]["param.0"]

    plain, coupled, free = radii(True, False), radii(True, True), radii(False, True)
    step = plain["rho"] - plain["rho_next"]
    assert step == pytest.approx(0.1 * plain["s"])
    assert coupled["rho"] - coupled["rho_next"] == pytest.approx(step / 4)
    assert free["rho"] - free["rho_next"] == pytest.approx(step)


SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (t + 1)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 2),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=3),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 10),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(o, 6)],
        [2],
    ),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, MADE_WITH, total_steps=10),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.1 * MADE_WITH, MADE_WITH, 3),
}
OWN_RATES = ("OneCycleLR", "CyclicLR")  # their initial_lr is not the optimizer's
MADE_WITH = 1e-3


@pytest.mark.parametrize("name", SCHEDULERS)
def test_lr_rho_follows_every_scheduler_from_the_lr_of_construction(name):
    p = torch.nn.Parameter(torch.eye(4) * 3)
    p.grad = torch.eye(4)
    optimizer = rode.RODE([p], lr=MADE_WITH, lr_rho=0.1, radius="learned")
    scheduler = SCHEDULERS[name](optimizer)
    group = optimizer.param_groups[0]
    rates = set()
    for _ in range(6):
        optimizer.step()
        moved = optimizer.diagnostics()["matrices"]["param.0"]
        lr_rho = (moved["rho"] - moved["rho_next"]) / moved["s"]
        start = MADE_WITH if name in OWN_RATES else group["initial_lr"]
        assert lr_rho == pytest.approx(0.1 * group["lr"] / start, rel=1e-4)
        rates.add(group["lr"])
        scheduler.step()
    assert len(rates) > 1


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o, 0.01, total_steps=30, cycle_momentum=not isinstance(o, rode.Adafactor)
        ),
        lambda o: torch.optim.lr_scheduler.LinearLR(o),
    ],
)
@every_kind
def test_schedulers_run(kind, make):
    model = TinyModel()
    optimizer = kind(model)
    scheduler = make(optimizer)
    rates = []
    for t in range(10):
        train(model, optimizer, 1, first=t)
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert len(set(rates)) > 1


def test_closure_hooks_and_zero_grad():
    model = TinyModel()
    optimizer = rode.RODE(model)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure():
        optimizer.zero_grad(set_to_none=False)
        loss = model(torch.arange(5)).square().mean()
        loss.backward()
        calls.append("closure")
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert loss.item() > 0
    assert calls == ["before", "closure", "after"]
    optimizer.zero_grad(set_to_none=True)
    assert all(p.grad is None for p in model.parameters())
    before = copy.deepcopy(model)
    optimizer.step()  # no gradient: nothing moves
    assert same(before, model)


@pytest.mark.parametrize("form", ["transposed", "strided", "expanded", "bf16", "fp16", "fp64"])
def test_gradients_of_any_form(form):
    g = torch.randn(6, 6)
    odd = {
        "transposed": g.t().contiguous().t(),
        "strided": torch.stack([g, g], -1)[..., 0],
        "expanded": g[:1].expand(6, 6),
    }.get(form, g)
    p, q = torch.nn.Parameter(torch.randn(6, 6)), None
    q = torch.nn.Parameter(p.detach().clone())
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}.get(form)
    a, b = rode.RODE([p]), rode.RODE([q])
    for _ in range(2):
        if dtype is None:
            p.grad, q.grad = odd, odd.clone(memory_format=torch.contiguous_format)
        else:
            if not hasattr(p, "grad_dtype"):
                pytest.skip("this torch ties a gradient's type to its parameter's")
            p.grad_dtype = dtype
            p.grad, q.grad = g.to(dtype), g.to(dtype).float()
        a.step()
        b.step()
    if dtype is torch.bfloat16:
        torch.testing.assert_close(p, q)
    else:
        assert torch.equal(p, q)


def test_non_contiguous_parameters_are_stepped_in_place():
    base = torch.randn(8, 6)
    p = torch.nn.Parameter(base.clone().t())
    q = torch.nn.Parameter(base.t().contiguous())
    a, b = rode.RODE([p]), rode.RODE([q])
    for _ in range(3):
        p.grad = torch.randn(6, 8)
        q.grad = p.grad.clone()
        a.step()
        b.step()
    assert not p.is_contiguous()
    assert torch.equal(p, q)


def test_sparse_gradients_are_refused_by_name():
    embed = torch.nn.Embedding(5, 3, sparse=True)
    optimizer = rode.AdamW(embed)
    embed(torch.tensor([1])).sum().backward()
    with pytest.raises(rode.Error, match="'weight'"):
        optimizer.step()


def test_a_group_without_names_may_follow_named_ones():
    model = TinyModel()
    optimizer = rode.RODE(model)
    train(model, optimizer, 1)
    extra = torch.nn.Parameter(torch.randn(3, 3))
    extra.grad = torch.ones(3, 3)
    optimizer.add_param_group({"params": [extra]})
    optimizer.step()
    assert "momentum" in optimizer.state[extra]


def test_autograd_sees_that_weights_changed():
    p = torch.nn.Parameter(torch.randn(3, 3))
    optimizer = rode.SGD([p])
    p.grad = torch.ones(3, 3)
    loss = (p * p).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_weights_without_a_gradient_have_not_changed_for_autograd():
    p, q = (torch.nn.Parameter(torch.randn(3, 3)) for _ in range(2))
    optimizer = rode.SGD([p, q])
    p.grad = torch.ones(3, 3)
    loss = (q * q).sum()
    optimizer.step()
    loss.backward()
    assert torch.equal(q.grad, 2 * q.detach())


def test_grad_scaler_skips_a_step_with_inf():
    p = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = rode.SGD([p], lr=1.0, momentum=0.0, weight_decay=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for bad in (True, False):
        optimizer.zero_grad()
        scaler.scale(p.sum() * (float("inf") if bad else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(p.detach(), torch.full((4, 4), 1.0 if bad else 0.0))


def test_a_refused_step_raises_changes_nothing_and_is_counted():
    p = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = rode.RODE([p])
    assert optimizer.refused_steps() == 0
    p.grad = torch.full((4, 4), float("nan"))
    with pytest.raises(rode.Error, match=r"'param\.0' holds NaN or Inf"):
        optimizer.step()
    assert torch.equal(p.detach(), torch.ones(4, 4))
    assert optimizer.refused_steps() == 1
    optimizer.check()  # said already


def test_options_may_be_sent_without_a_step():
    p = torch.nn.Parameter(torch.ones(4))
    p.grad = torch.ones(4)
    optimizer = rode.SGD([p], lr=1.0, momentum=0.0, weight_decay=0.0)
    optimizer.send_options()  # before there is an engine
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.send_options()
    optimizer.step()
    assert torch.equal(p.detach(), torch.full((4,), -0.5))
    optimizer.param_groups[0]["rounding"] = "nearest"
    with pytest.raises(rode.Error, match="fixed option"):
        optimizer.send_options()


def test_torch_compiled_model():
    model = TinyModel()
    compiled = torch.compile(model, backend="eager")
    optimizer = rode.RODE(model)
    losses = train(compiled, optimizer, 10)
    assert losses[-1] < losses[0]


def test_two_devices_are_refused():
    a = torch.nn.Parameter(torch.randn(3, 3))
    b = torch.nn.Parameter(torch.randn(3, 3, device="meta"))
    with pytest.raises(rode.Error, match=r"param\.0.*cpu.*param\.1.*meta"):
        rode.RODE([a, b])


def test_doubtful_options_warn():
    p = torch.nn.Parameter(torch.zeros(3, 3))
    p.grad = torch.ones(3, 3)
    with pytest.warns(UserWarning, match="norm zero"):
        rode.RODE([p], on_zero="hold").step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p.data.fill_(1.0)
        rode.RODE([p]).step()


def test_frees_gradients_that_are_set_to_none():
    p = torch.nn.Parameter(torch.randn(4, 4))
    optimizer = rode.SGD([p])
    p.grad = torch.ones(4, 4)
    optimizer.step()
    grad = weakref.ref(p.grad)
    optimizer.zero_grad()
    assert grad() is None


@every_kind
def test_a_torch_without_the_exchange_table_gives_the_same(kind, monkeypatch):
    def run():
        torch.manual_seed(1)
        model = TinyModel()
        optimizer = kind(model)
        losses = train(model, optimizer, 3)
        model.inner.weight.data = model.inner.weight.data.clone()  # moves
        model.norm.weight.grad = None
        model.outer.weight.grad = model.outer.weight.grad.t().contiguous().t()
        optimizer.step()
        return losses, model

    losses, model = run()
    monkeypatch.setattr("rode._binding._EXCHANGE", None)
    other_losses, other = run()
    assert losses == other_losses
    assert same(model, other)


def test_a_compiled_training_step_runs_the_engine_as_it_is():
    def losses(wrap):
        torch.manual_seed(5)
        model = TinyModel()
        optimizer = rode.RODE(model)

        def step(tokens):
            optimizer.zero_grad()
            loss = model(tokens).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step = wrap(step)
        return [step(torch.arange(8) + t).item() for t in range(3)]

    plain = losses(lambda f: f)
    compiled = losses(lambda f: torch.compile(f, backend="eager"))
    assert compiled == pytest.approx(plain, rel=1e-5)
