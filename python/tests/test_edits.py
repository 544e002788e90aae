# SPDX-License-Identifier: Apache-2.0
"""What a program may change between two steps: state, options, tensors, groups."""

import warnings
import weakref

import pytest
import torch

import rode


def stepped(kind=rode.AdamW, count=2, **options):
    """Parameters with gradients, and an optimizer after one step."""
    params = [torch.nn.Parameter(torch.randn(4, 6)) for _ in range(count)]
    for p in params:
        p.grad = torch.randn(4, 6)
    optimizer = kind(params, **options)
    optimizer.step()
    return params, optimizer


def test_cleared_state_begins_anew():
    params, optimizer = stepped()
    optimizer.state.clear()
    optimizer.step()
    assert [optimizer.state[p]["step"].item() for p in params] == [1, 1]
    assert len(optimizer.state_dict()["state"]) == 2


def test_deleted_state_of_one_parameter_begins_anew():
    (p, q), optimizer = stepped()
    del optimizer.state[p]
    optimizer.step()
    assert (optimizer.state[p]["step"].item(), optimizer.state[q]["step"].item()) == (1, 2)


@pytest.mark.parametrize("ask", ["step", "named_state"])
def test_replaced_state_of_one_parameter_is_followed(ask):
    (p, q), optimizer = stepped()
    optimizer.state[p] = {key: torch.zeros_like(v) for key, v in optimizer.state[p].items()}
    mine = optimizer.state[p]["exp_avg"]
    if ask == "named_state":
        assert optimizer.named_state()["state.param.0.exp_avg"] is mine
    optimizer.step()
    assert optimizer.state[p]["exp_avg"] is mine
    assert optimizer.state[p]["step"].item() == 1
    assert optimizer.state[q]["step"].item() == 2


def test_state_in_another_order_or_with_more_entries_is_the_same():
    (p, q), optimizer = stepped()
    foreign = torch.nn.Parameter(torch.randn(1))
    first = optimizer.state.pop(p)
    optimizer.state[foreign] = {}
    optimizer.state[p] = first
    optimizer.step()
    assert optimizer.state[p] is first
    assert (first["step"].item(), optimizer.state[q]["step"].item()) == (2, 2)


@pytest.mark.parametrize("table", [True, False])
def test_a_weight_cut_at_the_same_address_is_not_stepped_as_the_whole(table, monkeypatch):
    if not table:  # as in a torch before 2.10
        monkeypatch.setattr("rode._binding._EXCHANGE", None)
    p = torch.nn.Parameter(torch.ones(8, 4))
    optimizer = rode.SGD([p], lr=1.0, momentum=0.0, weight_decay=0.0)
    p.grad = torch.zeros(8, 4)
    optimizer.step()
    whole = p.data
    p.data, p.grad = p.data[:2], torch.ones(8, 4)[:2]
    with pytest.raises(rode.Error, match=r"expected .*\(2, 4\)"):
        optimizer.step()
    assert torch.equal(whole, torch.ones(8, 4))


def test_a_non_contiguous_weight_of_another_form_is_followed():
    p = torch.nn.Parameter(torch.ones(8, 4).t())
    p.grad = torch.ones_like(p)
    optimizer = rode.SGD([p], lr=1.0, momentum=0.0, weight_decay=0.0)
    optimizer.step()
    p.data = torch.full((8, 4), 1 + 2**-7).bfloat16().t()
    p.grad = torch.full_like(p, 2**-7)
    optimizer.step()
    assert torch.equal(p.detach(), torch.ones(4, 8, dtype=torch.bfloat16))
    p.data = torch.ones(8, 5).t()
    p.grad = torch.ones_like(p)
    with pytest.raises(rode.Error, match=r"expected .*\(5, 8\)"):
        optimizer.step()


def test_non_contiguous_weights_are_written_before_a_warning_is_raised():
    zero = torch.nn.Parameter(torch.zeros(3, 3))
    p, q = torch.nn.Parameter(torch.randn(4, 3).t()), torch.nn.Parameter(torch.randn(3, 4))
    for each in (zero, p, q):
        each.grad = torch.randn_like(each)
    before, versions = p.detach().clone(), (p._version, q._version)
    optimizer = rode.RODE([zero, p, q], on_zero="hold")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="norm zero"):
            optimizer.step()
    assert not torch.equal(p.detach(), before)
    assert p._version > versions[0]
    assert q._version > versions[1]


def test_a_refused_step_is_no_change_for_autograd():
    p = torch.nn.Parameter(torch.randn(4, 3).t())
    p.grad = torch.full_like(p, float("nan"))
    version = p._version
    with pytest.raises(rode.Error, match="NaN"):
        rode.SGD([p]).step()
    assert p._version == version


def test_a_non_contiguous_weight_without_gradient_is_no_change_for_autograd():
    p, q = torch.nn.Parameter(torch.randn(4, 3).t()), torch.nn.Parameter(torch.randn(3, 4))
    q.grad = torch.randn(3, 4)
    version = p._version
    rode.SGD([p, q]).step()
    assert p._version == version


def test_expanded_weights_are_refused_before_anything_changes():
    p = torch.nn.Parameter(torch.randn(4, 1).expand(4, 3))
    q = torch.nn.Parameter(torch.randn(4, 3))
    q.grad = torch.ones(4, 3)
    before = q.detach().clone()
    with pytest.raises(rode.Error, match=r"'param\.1' is expanded"):
        rode.SGD([q, p])
    late = torch.nn.Parameter(torch.randn(4, 3))
    optimizer = rode.SGD([q, late])
    late.data, late.grad = p.data, torch.ones(4, 3)
    with pytest.raises(rode.Error, match=r"'param\.1' is expanded"):
        optimizer.step()
    assert torch.equal(q, before)
    assert not optimizer.state


def test_gradients_dropped_during_a_step_live_until_its_end(monkeypatch):
    p = torch.nn.Parameter(torch.zeros(3, 3))  # a norm of zero warns, within the step
    p.grad = torch.ones(3, 3)
    grad, alive = weakref.ref(p.grad), []

    def drop(_: str) -> None:
        p.grad = None
        alive.append(grad() is not None)

    monkeypatch.setattr("rode._binding._warn", drop)
    rode.RODE([p], on_zero="hold").step()
    assert alive == [True]
    assert grad() is None


@pytest.mark.parametrize("key", ["weight_decay", "betas"])
def test_tensors_among_the_options_may_change_in_place(key):
    decay, beta = torch.tensor(0.0), torch.tensor(0.5)
    start, g = torch.randn(4, 6), torch.randn(4, 6)
    p, q = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    p.grad = q.grad = g
    a = rode.AdamW([p], lr=0.1, weight_decay=decay, betas=(beta, 0.9))
    b = rode.AdamW([q], lr=0.1, weight_decay=0.0, betas=(0.5, 0.9))
    a.step()
    b.step()
    assert torch.equal(p, q)
    p.grad = q.grad = -2 * g
    (decay if key == "weight_decay" else beta).fill_(0.75)
    b.param_groups[0][key] = 0.75 if key == "weight_decay" else (0.75, 0.9)
    a.step()
    b.step()
    assert torch.equal(p, q)


def test_groups_without_parameters_are_stepped_as_nothing():
    optimizer = rode.RODE([{"params": []}])
    optimizer.step()
    assert optimizer.named_state() == {}
    p = torch.nn.Parameter(torch.randn(4, 4))
    p.grad = torch.ones(4, 4)
    optimizer.add_param_group({"params": [p]})
    optimizer.step()
    assert "momentum" in optimizer.state[p]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (rode.RODE, {"momentun": 0.5}, "'momentun'; did you mean 'momentum'"),
        (
            rode.RODE,
            {"rule": "matrix", "weight_decay": 0.1},
            "'weight_decay' is not an option of rode",
        ),
        (
            rode.RODE,
            {"weight_decay": 0.1, "weight_decay_rest": 0.2},
            "'weight_decay' is not an option of rode.*_rest'",
        ),
        (rode.AdamW, {"weight_decy": 0.1}, "'weight_decy'; did you mean 'weight_decay'"),
        (rode.AdamW, {"ns_steps": 5}, "'ns_steps' is not an option of adamw"),
        (rode.Muon, {"coefficients": "four", "ns_steps": 5}, "'ns_steps' = 5"),
        (rode.Muon, {"rule": "rest", "beta": (0.9, 0.9)}, "'beta'; did you mean 'betas'"),
    ],
)
def test_misspelt_and_other_optimizers_options_of_a_group_are_refused(kind, options, message):
    p = torch.nn.Parameter(torch.randn(4, 4))
    with pytest.raises(rode.OptionError, match=message):
        kind([{"params": [p], **options}])


@pytest.mark.parametrize("kind", [rode.RODE, rode.Muon, rode.MARSM])
def test_four_has_its_own_number_of_steps_wherever_it_is_set(kind):
    start = torch.randn(12, 8)

    def stepped(change=None, group=None, **options):
        p = torch.nn.Parameter(start.clone())
        p.grad = torch.ones(12, 8) + torch.eye(12, 8)
        optimizer = kind([{"params": [p], **(group or {})}], **options)
        optimizer.param_groups[0].update(change or {})
        optimizer.step()
        return p.detach()

    expected = stepped(coefficients="four", ns_steps=4)
    assert torch.equal(stepped(coefficients="four"), expected)
    assert torch.equal(stepped(group={"coefficients": "four"}), expected)
    assert torch.equal(stepped(change={"coefficients": "four"}), expected)
    assert not torch.equal(stepped(), expected)
    with pytest.raises(rode.OptionError, match="ns_steps=4"):
        stepped(change={"coefficients": "four", "ns_steps": 5})


def test_the_weight_decay_that_a_trainer_writes_is_the_rests_where_matrices_have_none():
    bias = torch.nn.Parameter(torch.full((4,), 0.5))
    other = torch.nn.Parameter(bias.detach().clone())
    bias.grad, other.grad = torch.ones(4), torch.ones(4)
    group = {"params": [bias], "weight_decay": 0.25}
    rode.RODE([group], lr_rest=1e-2).step()
    rode.RODE([{"params": [other]}], lr_rest=1e-2, weight_decay_rest=0.25).step()
    assert torch.equal(bias, other)
    assert group["weight_decay"] == 0.25  # the caller's own
    assert rode.Muon([group]).param_groups[0]["weight_decay"] == 0.25


def test_foreign_keys_of_a_group_are_kept():
    p = torch.nn.Parameter(torch.randn(4, 4))
    tags = {"initial_lr": 0.1, "max_momentum": 0.9, "lr_scale": 0.5, "name": "decoder"}
    group = rode.RODE([{"params": [p], **tags}]).param_groups[0]
    assert tags.items() <= group.items()
    rest = {"params": [p], "rule": "rest", "weight_decay": 0.5}
    assert rode.RODE([rest]).param_groups[0]["weight_decay"] == 0.5
    again = [dict(group, params=[p]) for group in torch.optim.AdamW([p]).param_groups]
    rode.AdamW(again)
