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


def exact_muon(w, g, scale, nesterov, lr, momentum, weight_decay):
    """The first step of torch.optim.Muon in double precision, written from its documentation."""
    w, g = w.double(), g.double()
    buffer = (1 - momentum) * g
    x = (1 - momentum) * g + momentum * buffer if nesterov else buffer
    m, n = x.shape
    x = x.t() if m > n else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        a = x @ x.t()
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    x = x.t() if m > n else x
    factor = max(1, m / n) ** 0.5 if scale == "original" else 0.2 * max(m, n) ** 0.5
    return w * (1 - lr * weight_decay) - lr * factor * x


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
    a = rode.Muon(ours, scale=scale, **options)
    b = torch.optim.Muon(theirs, adjust_lr_fn=adjust, **options)
    run(ours, theirs, a, b, steps=1)
    exact = exact_muon(start, ours[0].grad, scale, **options)
    way = torch.linalg.norm(exact - start)
    # The products here are fp32; the weights are stored so.
    rounding = 2**-23 * torch.linalg.norm(start) / way
    assert update_error(ours[0], exact, start) <= 1e-5 + rounding
    # torch's 5 iterations have 3 products each with operands in bf16 (2^-9): at worst in phase.
    bf16 = 5 * 3 * 2**-9
    assert update_error(theirs[0], exact, start) <= bf16
    assert update_error(ours[0], theirs[0], start) <= bf16
