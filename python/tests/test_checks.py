# SPDX-License-Identifier: Apache-2.0
"""What is wrong is found when it is given: at construction, when a group is added, at a load."""

import copy

import pytest
import torch
from conftest import TinyModel, every_kind, train

import rode


def leaf(*shape, **kwargs):
    return torch.nn.Parameter(torch.randn(*shape, **kwargs))


WRONG = {
    "float64": lambda: leaf(3, 3, dtype=torch.float64),
    "float16": lambda: leaf(3, 3).half(),
    "complex64": lambda: leaf(3, 3, dtype=torch.complex64),
    "meta": lambda: leaf(3, 3, device="meta"),
    "sparse": lambda: torch.nn.Parameter(torch.eye(3).to_sparse()),
    "expanded": lambda: torch.nn.Parameter(torch.randn(4, 1).expand(4, 3)),
}


@every_kind
@pytest.mark.parametrize("what", WRONG)
def test_parameters_that_cannot_be_stepped_are_refused_by_name_at_once(kind, what):
    wrong = torch.nn.Parameter(WRONG[what]().detach())
    with pytest.raises(rode.Error, match=rf"'scale'.*{what}"):
        kind([("fine", leaf(3, 3)), ("scale", wrong)])
    optimizer = kind([("fine", leaf(3, 3))])
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(rode.Error, match=rf"'scale'.*{what}"):
        optimizer.add_param_group({"params": [("scale", wrong)]})
    assert optimizer.state_dict() == before


@every_kind
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("route", "langage", "'langage'"),
        ("route", 3, "route = 3"),
        ("route", ["language"], "route"),
        ("rule", "matrx", "'matrx'"),
        ("rule", ["rest"], "rule"),
        ("layout", "outin", "'outin'"),
        ("layout", None, "layout"),
        ("lr", "fast", "lr.*'fast'"),
        ("lr", None, "lr.*None"),
        ("lr", torch.ones(2), "lr"),
        ("lr", -1.0, "lr"),
        ("seed", 1.5, "seed"),
        ("rounding", 2, "rounding"),
        ("param_names", ["a", "b"], "2 param_names for 1 parameters"),
        ("param_names", [7], "7.*string"),
    ],
)
def test_wrong_values_in_a_group_are_refused_at_once(kind, key, value, message):
    with pytest.raises(rode.OptionError, match=message):
        kind([{"params": [leaf(3, 3)], key: value}])
    optimizer = kind([("fine", leaf(3, 3))])
    with pytest.raises(rode.OptionError, match=message):
        optimizer.add_param_group({"params": [leaf(3, 3)], key: value})
    assert len(optimizer.param_groups) == 1


@every_kind
def test_a_wrong_route_of_the_optimizer_is_refused_at_once(kind):
    with pytest.raises(ValueError, match="langage.*language"):
        kind([leaf(3, 3)], route="langage")


@every_kind
def test_one_parameter_given_twice_is_called_that(kind):
    p = leaf(3, 3)
    p.grad = torch.ones(3, 3)
    with pytest.warns(UserWarning, match=r"'param\.0' and 'param\.2' are the same Parameter"):
        optimizer = kind([p, leaf(3, 3), p])
    before = p.detach().clone()
    with pytest.raises(rode.Error, match=r"'param\.0' and 'param\.2' are the same Parameter"):
        optimizer.step()
    assert torch.equal(p, before)
    with pytest.warns(UserWarning, match="'wte' and 'head' are the same Parameter"):
        kind([("wte", p), ("head", p)])
    with pytest.raises(ValueError, match="more than one parameter group"):
        kind([{"params": [p]}, {"params": [p]}])


def test_two_parameters_on_one_memory_are_refused_at_once():
    p = leaf(3, 3)
    for other in (p.data, p.data.t()):
        with pytest.raises(rode.Error, match=r"'param\.0' and 'param\.1'.*same memory"):
            rode.AdamW([p, torch.nn.Parameter(other)])
    optimizer = rode.AdamW([p])
    with pytest.raises(rode.Error, match="same memory"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(p.data)]})
    assert len(optimizer.param_groups) == 1


def test_two_parameters_of_one_name_are_refused_at_once():
    with pytest.raises(rode.OptionError, match=r"two parameters are named 'weight'"):
        rode.AdamW([("weight", leaf(2)), ("weight", leaf(2))])


# ---- Loading ----------------------------------------------------------------------------------


def stepped(kind):
    model = TinyModel()
    optimizer = kind(model)
    train(model, optimizer, 2)
    return model, optimizer


def assert_refused(model, optimizer, saved, error, message):
    """And that nothing has changed: the next step is that of an optimizer never asked."""
    twin, other = copy.deepcopy((model, optimizer))
    state, groups = (dict(optimizer.state), [dict(group) for group in optimizer.param_groups])
    with pytest.raises(error, match=message):
        optimizer.load_state_dict(saved)
    assert optimizer.state == state
    assert optimizer.param_groups == groups
    train(model, optimizer, 1, first=9)
    train(twin, other, 1, first=9)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


@every_kind
@pytest.mark.parametrize("what", ["shape", "type", "absent", "number"])
def test_state_that_does_not_fit_is_refused_at_the_load(kind, what):
    model, optimizer = stepped(kind)
    saved = copy.deepcopy(optimizer.state_dict())
    entries = saved["state"][0]
    key = max(entries, key=lambda each: entries[each].numel())
    if what == "shape":
        entries[key] = entries[key][:1].clone()
    elif what == "type":
        entries[key] = entries[key].to(torch.int32)
    elif what == "number":
        entries[key] = 0.5
    else:
        del entries[key]
        entries["another"] = torch.zeros(1)
    name = optimizer.param_groups[0]["param_names"][0]
    engine = "momentum" if key == "momentum_buffer" else key
    assert_refused(
        model, optimizer, saved, rode.Error, f"{engine}'? of.*'{name}'|'{name}'.*{engine}"
    )


@every_kind
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("route", "langage", "langage"), ("rule", "all", "rule"), ("lr", "fast", "lr.*fast"),
     ("rounding", "up", "rounding"), ("layout", 1, "layout")],
)  # fmt: skip
def test_options_that_are_wrong_are_refused_at_the_load(kind, key, value, message):
    model, optimizer = stepped(kind)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0][key] = value
    assert_refused(model, optimizer, saved, ValueError, message)
