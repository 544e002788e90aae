# SPDX-License-Identifier: Apache-2.0
"""Gradients and weights that are not finite: what is refused, skipped, or an error."""

import copy
import pickle
import warnings

import pytest
import torch
from conftest import every_kind

import rode


def two_matrices(kind, **options):
    generator = torch.Generator().manual_seed(3)
    params = [torch.nn.Parameter(torch.randn(8, 6, generator=generator)) for _ in range(2)]
    return params, kind(params, **options)


@every_kind
def test_a_step_that_overflows_raises_and_torch_sees_what_it_wrote(kind):
    rates = {"lr": 3e38, "lr_rest": 1.0}
    if kind is rode.RODE:
        rates["lr_rho"] = 3e38
    # Transposed: stepped through a copy.
    p = torch.nn.Parameter(torch.randn(6, 8, generator=torch.Generator().manual_seed(3)).T)
    optimizer, grad = kind([p], **rates), -100 * p.detach()
    with warnings.catch_warnings(), pytest.raises(rode.Error, match=r"'param\.0'") as caught:
        warnings.simplefilter("error")
        for _ in range(10):
            version = p._version
            p.grad = grad
            optimizer.step()
    assert isinstance(caught.value, RuntimeError) and caught.value.kind == "non-finite"
    assert caught.value.changed and "restore a checkpoint" in str(caught.value)
    assert p._version > version and not p.isfinite().all()
    optimizer.check()  # said already


def test_soap_at_an_absurd_rate_does_not_end_in_a_warning():
    (p, _), optimizer = two_matrices(rode.SOAP, lr=1e30)
    with pytest.raises(rode.Error, match="hold NaN or Inf after this step"):
        for _ in range(100):
            p.grad = torch.ones_like(p)
            optimizer.step()


@every_kind
@pytest.mark.parametrize("policy", ["refuse", "skip"])
def test_weights_that_are_not_finite_raise_whatever_is_skipped(kind, policy):
    (p, q), optimizer = two_matrices(kind, on_non_finite=policy)
    with torch.no_grad():
        q[7, 5] = torch.inf
    for x in (p, q):
        x.grad = torch.ones_like(x)
    with pytest.raises(rode.Error, match=r"'param\.1'.*restore a checkpoint"):
        optimizer.step()


@every_kind
def test_a_gradient_that_is_not_finite_may_be_skipped(kind):
    (p, q), optimizer = two_matrices(kind, on_non_finite="skip")
    for other in (optimizer, pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        p, q = (x for group in other.param_groups for x in group["params"])
        before = q.detach().clone()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the note about q
            for bad in (torch.nan, torch.inf, torch.nan):
                start = p.detach().clone()
                p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
                q.grad[0, 1] = bad
                other.step()
        assert not torch.equal(p, start) and torch.equal(q, before)
        assert other.refused_steps() == 0


@every_kind
def test_another_policy_is_refused_at_construction(kind):
    with pytest.raises(ValueError, match="'on_non_finite': expected refuse or skip, got 'drop'"):
        two_matrices(kind, on_non_finite="drop")
