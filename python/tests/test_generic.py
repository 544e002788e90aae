# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own generic checks of optimizers, where they fit, on every optimizer here."""

import copy

import pytest
import torch
from conftest import every_kind
from torch.optim.optimizer import register_optimizer_step_post_hook

common = pytest.importorskip(
    "torch.testing._internal.common_optimizers", reason="needs the package expecttest"
)


@every_kind
@pytest.mark.parametrize(
    "error",
    common.get_error_inputs_for_all_optims("cpu", torch.float32),
    ids=lambda e: e.optimizer_error_input.desc,
)
def test_errors_that_every_optimizer_raises(kind, error):
    given = error.optimizer_error_input
    if error.error_on is common.OptimizerErrorEnum.CONSTRUCTION_ERROR:
        if issubclass(error.error_type, Warning):
            with pytest.warns(error.error_type, match=error.error_regex):
                kind(given.params, **given.kwargs)
            return
        with pytest.raises(error.error_type) as caught:
            kind(given.params, **given.kwargs)
        if "lr" not in given.kwargs:  # a bad rate has the engine's text
            caught.match(error.error_regex)
        return
    optimizer = kind(given.params, **given.kwargs)
    with pytest.raises(error.error_type, match=error.error_regex):
        optimizer.step()


def regression(kind, **options):
    weight = torch.nn.Parameter(torch.randn(10, 5))
    bias = torch.nn.Parameter(torch.randn(10))
    inputs = torch.randn(5)
    optimizer = kind([weight, bias], **options)

    def closure():
        optimizer.zero_grad()
        loss = (weight.mv(inputs) + bias).pow(2).sum()
        loss.backward()
        return loss

    return weight, bias, optimizer, closure


@every_kind
@pytest.mark.parametrize("with_scheduler", [False, True])
def test_goes_in_the_right_direction(kind, with_scheduler):
    _, _, optimizer, closure = regression(kind, lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    first = closure().item()
    for _ in range(20):
        optimizer.step(closure)
        if with_scheduler:
            scheduler.step()
    assert closure().item() < first


@every_kind
def test_a_tensor_as_rate_equals_the_number(kind):
    results = []
    for rate in (0.02, torch.tensor(0.02, dtype=torch.float64)):
        torch.manual_seed(3)
        weight, bias, optimizer, closure = regression(kind, lr=rate)
        for _ in range(4):
            optimizer.step(closure)
        results.append((weight, bias))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@every_kind
def test_groups_with_their_own_rate_and_the_default(kind):
    a, b = (torch.nn.Parameter(torch.randn(4, 4)) for _ in range(2))
    optimizer = kind([{"params": [a], "lr": 0.25}, {"params": b}], lr=0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.5]
    assert "lr: 0.25" in repr(optimizer)


@every_kind
def test_a_step_without_gradients_changes_nothing(kind):
    weight, bias, optimizer, closure = regression(kind)
    optimizer.step(closure)
    before = [p.detach().clone() for p in (weight, bias)]
    state = copy.deepcopy(optimizer.state_dict()["state"])
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(weight, before[0])
    assert torch.equal(bias, before[1])
    now = optimizer.state_dict()["state"]
    for number, entries in state.items():
        for key, value in entries.items():
            assert torch.equal(value, now[number][key])


@every_kind
def test_hooks_of_state_dict_see_and_change_it(kind):
    _, _, optimizer, closure = regression(kind)
    optimizer.step(closure)
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "extra": 1})
    saved = optimizer.state_dict()
    assert saved["extra"] == 1
    _, _, other, _ = regression(kind)

    def double(_, given):
        state = {
            number: {
                key: value * 2 if value.is_floating_point() and key != "step" else value
                for key, value in entries.items()
            }
            for number, entries in given["state"].items()
        }
        return {**given, "state": state}

    other.register_load_state_dict_pre_hook(double)
    other.load_state_dict(saved)
    ours = next(iter(optimizer.state.values()))
    theirs = next(iter(other.state.values()))
    for key, value in ours.items():
        factor = 2 if value.is_floating_point() else 1
        assert torch.equal(theirs[key], value * factor)


@every_kind
def test_loading_copies(kind):
    _, _, optimizer, closure = regression(kind)
    optimizer.step(closure)
    saved = optimizer.state_dict()
    _, _, other, other_closure = regression(kind)
    other.load_state_dict(saved)
    kept = copy.deepcopy(saved["state"])
    other.step(other_closure)
    for number, entries in kept.items():
        for key, value in entries.items():
            assert torch.equal(saved["state"][number][key], value)


@every_kind
def test_deepcopy_copies_public_attributes(kind):
    _, _, optimizer, closure = regression(kind)
    optimizer.step(closure)

    def public(o):
        return {name for name in o.__dict__ if not name.startswith("_")}

    assert public(copy.deepcopy(optimizer)) == public(optimizer)


@every_kind
def test_hooks_of_all_optimizers(kind):
    _, _, optimizer, closure = regression(kind)
    seen = []
    handle = register_optimizer_step_post_hook(lambda o, *_: seen.append(type(o)))
    optimizer.step(closure)
    handle.remove()
    assert seen == [kind]
