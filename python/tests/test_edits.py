# SPDX-License-Identifier: Apache-2.0
"""What a program may change between two steps: state, options, tensors, groups."""

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
