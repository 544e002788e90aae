# SPDX-License-Identifier: Apache-2.0
"""Two processes on one GPU, over gloo, end where one does.

The design promises equal bits on the CPU alone: on CUDA, Newton-Schulz works on batches of
matrices, and which matrices are beside one decides whether its projection runs within the product
or behind it. So runs are compared as the trajectories of tests/trajectory/compare.py are; each test
prints the largest difference (pytest -rP)."""

import cuda_ranks
import pytest
import torch
import torch.distributed as dist
from compare import BF16_PRODUCTS_TOL, FP32_EPS, tolerance
from cuda_ranks import (
    DEVICE,
    KINDS,
    LAYOUTS,
    PARTED,
    STEPS,
    WHOLE,
    WORLD,
    placed_values,
    train,
    train_on_host,
    train_placed,
    values,
)
from cuda_runs import needs_cuda
from shared_ranks import run_ranks

pytestmark = [
    *(needs_cuda if DEVICE == "cuda" else []),
    pytest.mark.skipif(not dist.is_available(), reason="torch without distributed"),
]
# Of a rate that is half as large again, which moves weights by about that much more.
OTHER_RATE = 1.5


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    pytest.importorskip("torch.distributed.tensor")
    folder, codes = run_ranks(tmp_path_factory, cuda_ranks.__file__, WORLD)
    assert codes == [0] * WORLD
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def compare(found, expected, other, start, tol, stored=FP32_EPS):
    """Within `tol` of the distance that a tensor has moved, and what storing it has cost; an option
    moves it several times as far. Returns the difference over that distance."""
    found, expected, other, start = (v.double() for v in (found, expected, other, start))
    moved = torch.linalg.norm(expected - start)
    error = torch.linalg.norm(found - expected)
    bound = tol * moved + STEPS * stored * torch.linalg.norm(start)
    assert error <= bound < torch.linalg.norm(other - expected) / 2, (error / moved, bound / moved)
    return float(error / moved)


def whole(parts, name, dim):
    """Of all ranks' parts."""
    rows = [part[name] for part in parts]
    return torch.cat(rows, dim) if dim < rows[0].dim() else rows[0]


@pytest.mark.parametrize("kind", KINDS)
def test_shares_end_where_one_process_does(ranks, kind):
    """Twice the bound of agreement with the oracle, as both runs have it."""
    expected, other = train(kind), train(kind, OTHER_RATE)
    start = {name: value.cpu() for name, value in values(1).items()}
    worst = {}
    for name, value in ranks[0]["steps"][kind].items():
        assert torch.equal(value, ranks[1]["steps"][kind][name]), name
        products = min(value.shape[-2:], default=0) >= 64 and kind not in ("SOAP", "AdamW")
        tol = BF16_PRODUCTS_TOL if products else tolerance(STEPS)
        # A difference may round a bf16 weight to its other neighbour, 2^-8 away.
        if value.dtype is torch.bfloat16:
            error = torch.linalg.norm((value - expected[name]).double())
            moved = torch.linalg.norm((expected[name] - start[name]).double())
            assert error <= 2 * tol * moved + 2**-8 * torch.linalg.norm(start[name].double()), name
            worst[name] = float(error / moved)
        else:
            worst[name] = compare(value, expected[name], other[name], start[name], 2 * tol)
    print(kind, worst)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", WHOLE)
def test_dtensors_with_fp32_products_end_where_one_process_does(ranks, kind, layout):
    check_placed([found["whole"][kind, layout] for found in ranks], kind, layout, "fp32")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", PARTED)
def test_dtensors_that_are_stepped_in_parts_end_where_one_process_does(ranks, kind, layout):
    """To the rounding of bf16 products."""
    check_placed([found["parted"][kind, layout] for found in ranks], kind, layout, "bf16")


def check_placed(parts, kind, layout, products):
    expected = train_placed(kind, products)
    other = train_placed(kind, products, factor=OTHER_RATE)
    start = {name: value.cpu() for name, value in placed_values(1).items()}
    worst = {}
    for name, value in expected.items():
        half = products == "bf16" and name in ("wide", "tall")
        tol = BF16_PRODUCTS_TOL if half else tolerance(STEPS)
        found = whole(parts, name, LAYOUTS[layout])
        worst[name] = compare(found, value, other[name], start[name], 2 * tol)
    print(kind, layout, worst)


def test_the_hosts_tensors_go_by_gloo_where_a_group_has_both(ranks):
    expected = train_on_host(None)
    for found in ranks:
        for name, value in found["host"].items():
            assert torch.equal(value, expected[name]), name


def test_nan_on_one_rank_is_refused_on_both(ranks):
    bad, good = ranks[0]["bad"]
    assert ranks[1]["bad"] == [bad, good]
    assert "gradient of 'wide' holds NaN or Inf" in bad["text"] and "on rank 1" in bad["text"]
    assert bad["same"] and bad["kind"] == "non-finite" and not bad["changed"]
    assert good["text"] == "" and not good["same"]


@pytest.mark.parametrize("products", ["fp32", "bf16"])
def test_nan_in_a_part_of_a_dtensor_is_refused_on_both_ranks(ranks, products):
    for found in ranks:
        good, bad = found["placed bad"][products]
        assert good["text"] == "" and not good["same"]
        assert "gradient of 'tall' holds NaN or Inf" in bad["text"]
        assert bad["same"] and bad["kind"] == "non-finite" and not bad["changed"]
