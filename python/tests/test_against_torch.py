# SPDX-License-Identifier: Apache-2.0
"""Values beside PyTorch's own optimizers."""

import pytest
import torch

import rode

STEPS = 20


def pair(shapes):
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    return ours, theirs


def run(ours, theirs, a, b, steps=STEPS):
    for _ in range(steps):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        a.step()
        b.step()


def update_error(p, q, start):
    """||p - q|| over the length of the way from the start."""
    return (torch.linalg.norm(p - q) / torch.linalg.norm(q - start)).item()


@pytest.mark.parametrize(
    "options",
    [{}, {"lr": 1e-2, "betas": (0.8, 0.99)}, {"lr": 1e-2, "eps": 1e-3, "weight_decay": 0.3}],
)
def test_adamw_equals_torch_to_rounding(options):
    options = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 1e-2, **options}
    ours, theirs = pair([(17, 9), (5,), (2, 3, 4)])
    starts = [p.detach().clone() for p in ours]
    run(ours, theirs, rode.AdamW(ours, **options), torch.optim.AdamW(theirs, **options))
    for p, q, start in zip(ours, theirs, starts, strict=True):
        # Each step rounds W once to fp32, in either implementation.
        rounding = 2 * STEPS * 2**-24 * torch.linalg.norm(start) / torch.linalg.norm(q - start)
        assert update_error(p, q, start) <= 1e-6 + rounding


@pytest.mark.parametrize("options", [{}, {"momentum": 0.0}, {"weight_decay": 0.1}])
def test_sgd_equals_torch_to_rounding(options):
    options = {"lr": 1e-1, "momentum": 0.9, "weight_decay": 5e-4, **options}
    ours, theirs = pair([(17, 9), (5,), (2, 3, 4)])
    starts = [p.detach().clone() for p in ours]
    run(ours, theirs, rode.SGD(ours, **options), torch.optim.SGD(theirs, **options))
    for p, q, start in zip(ours, theirs, starts, strict=True):
        rounding = 2 * STEPS * 2**-24 * torch.linalg.norm(start) / torch.linalg.norm(q - start)
        assert update_error(p, q, start) <= 1e-6 + rounding


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize(
    ("scale", "adjust"), [("original", "original"), ("rms", "match_rms_adamw")]
)
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(48, 32), (32, 96), (64, 64)])
def test_muon_equals_torch_within_bf16_products(shape, nesterov, scale, adjust):
    ours, theirs = pair([shape])
    start = ours[0].detach().clone()
    options = {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.05, "nesterov": nesterov}
    run(
        ours,
        theirs,
        rode.Muon(ours, scale=scale, **options),
        torch.optim.Muon(theirs, adjust_lr_fn=adjust, **options),
        steps=1,
    )
    # torch rounds the iterate to bf16 (2^-9 relative) before each of 5 iterations and after each
    # of their products. The polynomial's slope at 0 is 3.4445: an error of the first iterate may
    # grow to 3.4445^4 in a small singular value, where the value itself grows alike. Relative to
    # the norm of O, errors of 3 roundings an iteration add up, at worst in phase.
    bound = 5 * 3 * 2**-9
    assert update_error(ours[0], theirs[0], start) <= bound
    # The effect of each option is larger than that.
    assert torch.linalg.norm(theirs[0] - start) > 0.1 * 1e-2
