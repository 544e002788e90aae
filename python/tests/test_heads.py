# SPDX-License-Identifier: Apache-2.0
"""scale_heads: rows of a projection by head, and the radii that an optimizer keeps."""

import pytest
import torch

import rode

FACTORS = (0.5, 1.0, 2.0)
KEPT = [
    (rode.RODE, {"radius": "fixed"}),
    (rode.RODE, {"radius": "fixed", "radius_scope": "rows", "reproject": "final"}),
    (rode.Muon, {"constraint": "normproj"}),
    (rode.Muown, {}),
]


def stepped(kind=rode.RODE, dtype=torch.float32, **options):
    torch.manual_seed(3)
    p = torch.nn.Parameter(torch.randn(12, 8).to(dtype))
    optimizer = kind([("q.weight", p)], route="all_matrices", **options)
    p.grad = torch.randn(12, 8).to(dtype)
    optimizer.step()
    return p, optimizer


@pytest.mark.parametrize("layout", ["out_in", "in_out"])
def test_rows_of_every_head_are_scaled(layout):
    p, optimizer = stepped()
    optimizer.param_groups[0]["layout"] = layout
    before = p.detach().clone()
    factors = FACTORS if layout == "out_in" else FACTORS[:2]
    optimizer.scale_heads("q.weight", factors)
    rows = torch.tensor(factors).repeat_interleave(
        (12 if layout == "out_in" else 8) // len(factors)
    )
    expected = before * (rows[:, None] if layout == "out_in" else rows)
    torch.testing.assert_close(p.detach(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind,options", KEPT)
def test_a_radius_that_is_kept_follows(kind, options):
    """With rates of zero a step changes nothing: neither does the next one after scaling."""
    p, optimizer = stepped(kind, **options)
    optimizer.scale_heads("q.weight", FACTORS)
    # Not by the step alone: without a change Muown takes the weights as they are.
    radius = optimizer.state[p]["radius"]
    norms = torch.linalg.vector_norm(p.detach(), dim=1 if radius.numel() == 12 else None)
    torch.testing.assert_close(radius, norms.view_as(radius), rtol=1e-6, atol=0)
    after = p.detach().clone()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        if "lr_rho" in group:
            group["lr_rho"] = 0.0
    p.grad = torch.randn(12, 8)
    optimizer.step()
    torch.testing.assert_close(p.detach(), after, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind,options", [KEPT[1], KEPT[3]])
def test_radii_of_bf16_weights_get_the_factor_that_the_weights_get(kind, options):
    factors = (0.7, 1.0, 1.3)  # 0.7 is 0.69921875 in bf16
    p, optimizer = stepped(kind, torch.bfloat16, **options)
    before = optimizer.state[p]["radius"].clone()
    optimizer.scale_heads("q.weight", factors)
    rounded = torch.tensor(factors).bfloat16().float().repeat_interleave(4)
    torch.testing.assert_close(optimizer.state[p]["radius"], before * rounded, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "shape,layout,words",
    [
        ((3, 12, 8), "experts_out_in", "layout=experts_out_in, a matrix for every expert"),
        ((3, 12, 8), "experts_in_out", "layout=experts_in_out, a matrix for every expert"),
        ((12, 2, 2, 2), "out_in", r"shape \(12, 2, 2, 2\); expected a projection of rank 2"),
    ],
)
def test_only_projections_of_rank_2_have_heads(shape, layout, words):
    p = torch.nn.Parameter(torch.randn(shape))
    group = {"params": [("experts", p)], "rule": "matrix", "layout": layout}
    optimizer = rode.RODE([group], radius="fixed")
    p.grad = torch.randn(shape)
    optimizer.step()
    before, radius = p.detach().clone(), optimizer.state[p]["radius"].clone()
    with pytest.raises(rode.Error, match="'experts' has " + words):
        optimizer.scale_heads("experts", FACTORS)
    assert torch.equal(p, before) and torch.equal(optimizer.state[p]["radius"], radius)


def test_what_cannot_be_scaled_is_refused_and_left_alone():
    p, optimizer = stepped()
    before = p.detach().clone()
    for name, factors, words in (
        ("k.weight", FACTORS, "no parameter 'k.weight'"),
        ("q.weight", (1.0,) * 5, "12 rows of the fan-out and 5 factors"),
        ("q.weight", (1.0, -1.0), "expected positive numbers"),
        ("q.weight", (1.0, float("nan")), "expected positive numbers"),
    ):
        with pytest.raises(rode.Error, match=words):
            optimizer.scale_heads(name, factors)
    assert torch.equal(p, before)
