# SPDX-License-Identifier: Apache-2.0
"""DTensors that are matrices: FSDP2, HSDP and tensor parallelism end where one process does."""

import pytest
import torch
import torch.distributed as dist
import whole_ranks
from conftest import TinyModel, train
from shared_ranks import run_ranks
from whole_ranks import CASES, KINDS, LAYOUTS, STEPS, WORLD, make, train_lora, values

import rode

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    pytest.importorskip("torch.distributed.tensor")
    folder, codes = run_ranks(tmp_path_factory, whole_ranks.__file__, WORLD)
    assert codes == [0] * WORLD
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.fixture(scope="module")
def alone():
    """One process: weights and state dict."""
    out = {}
    for kind in KINDS:
        params = {name: torch.nn.Parameter(value) for name, value in values(1).items()}
        optimizer = make(kind, params)
        for t in range(STEPS):
            for name, grad in values(10 + t).items():
                params[name].grad = grad
            optimizer.step()
        out[kind] = {n: p.detach() for n, p in params.items()}, optimizer.state_dict()
    return out


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_matrices_in_parts_end_where_one_process_does_bit_for_bit(ranks, alone, kind, layout):
    expected, _ = alone[kind]
    start = values(1)
    for found in ranks:
        for name, value in found["layouts"][kind, layout]["weights"].items():
            assert torch.equal(value, expected[name]), name
            assert not torch.equal(value, start[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_dealt_out_and_saved_as_that_of_one_process(ranks, alone, kind):
    _, own = alone[kind]
    held = [found["layouts"][kind, "fsdp 4"]["state"] for found in ranks]
    bias = next(i for i, group in enumerate(own["param_groups"]) if group["rule"] == "rest")
    number = own["param_groups"][bias]["params"][0]
    matrices = [entries for n, entries in own["state"].items() if n != number]
    assert sum(held) == sum(v.numel() for s in matrices for v in s.values())
    assert max(held) < sum(held)
    for found in ranks:
        saved = found["layouts"][kind, "fsdp 4"]["saved"]
        assert saved["state"].keys() == own["state"].keys()
        for n, entries in own["state"].items():
            for key, value in entries.items():
                assert torch.equal(value, saved["state"][n][key]), (n, key)


def test_a_step_takes_four_collectives_on_a_mesh_of_one_dimension(ranks):
    for found in ranks:
        for (kind, layout), run in found["layouts"].items():
            assert run["calls"] == (4 if len(LAYOUTS[layout][1]) == 1 else 6), (kind, layout)


def test_state_saved_on_four_ranks_continues_on_two(ranks, alone):
    for found in ranks:
        for name, value in found["resume"].items():
            assert torch.equal(value, alone["RODE"][0][name]), name


def test_zero_starts_are_judged_by_the_weights_that_were_loaded(ranks):
    params = {name: torch.nn.Parameter(value) for name, value in values(1).items()}
    optimizer = make("RODE", params)
    for name, grad in values(11).items():
        params[name].grad = grad
    optimizer.step()
    for found in ranks:
        for name, value in found["loaded"].items():
            assert torch.equal(value, params[name]), name


def test_the_route_is_that_of_all_parameters_whatever_a_rank_owns(ranks):
    expected = train_lora()
    for found in ranks:
        for name, value in found["lora"].items():
            assert torch.equal(value, expected[name]), name


def test_shards_alone_are_not_given_out_as_the_whole(ranks):
    for found in ranks:
        assert "torch.distributed.checkpoint" in found["shards"]


def test_a_part_that_is_not_finite_stops_every_rank(ranks):
    for found in ranks:
        assert "gradient of 'odd' holds NaN or Inf" in found["bad"]["text"]
        assert found["bad"]["same"]
        assert found["bad"]["none"] == ("", False)  # a step without any gradient
        assert "options differ: rank 1 has" in found["bad"]["options"]


def test_weights_that_only_their_owner_finds_spoiled_end_the_step_everywhere(ranks):
    texts = [found["bad"]["spoiled"] for found in ranks]
    assert all(changed for _, changed in texts)
    assert sum("of 'odd' hold NaN or Inf" in text for text, _ in texts) == 1
    assert sum("the step failed on another rank" in text for text, _ in texts) == WORLD - 1


@pytest.mark.parametrize("kind", ["RODE", "Muon"])
def test_fsdp2_trains_as_one_process_and_resumes_from_a_distributed_checkpoint(ranks, kind):
    torch.manual_seed(4)
    model = TinyModel()
    train(model, getattr(rode, kind)(model), 4)
    for name, expected in model.named_parameters():
        for found in ranks:
            assert torch.equal(expected, found["model"][kind]["through"][name]), name
            assert torch.equal(expected, found["model"][kind]["resumed"][name]), name
