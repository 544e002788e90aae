# SPDX-License-Identifier: Apache-2.0
"""`process_group`: several processes step shares of the parameters, and end where one would."""

import copy
import re
import signal

import parallel_ranks
import pytest
import torch
import torch.distributed as dist
from parallel_ranks import (
    FORMS,
    KINDS,
    SIZES,
    STEPS,
    WORLD,
    make,
    parameters,
    train,
    train_lora,
    values,
    weights,
)
from shared_ranks import run_ranks

import rode

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, codes = run_ranks(tmp_path_factory, parallel_ranks.__file__, WORLD)
    assert codes == [0, 0, 0, -signal.SIGKILL]
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.fixture(scope="module")
def ends(folder):
    return [torch.load(folder / f"{rank}.end.pt") for rank in range(WORLD - 1)]


@pytest.fixture(scope="module")
def alone():
    """One process, without a group: weights and bytes of state."""
    out = {}
    for kind in KINDS:
        params = parameters()
        optimizer = make(kind, params)
        train(params, optimizer, 0, STEPS)
        held = [v for s in optimizer.state.values() for v in s.values()]
        out[kind] = weights(params), sum(v.numel() * v.element_size() for v in held), optimizer
    return out


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_shares_end_where_one_process_does_bit_for_bit(ranks, alone, kind, size):
    expected, _, _ = alone[kind]
    start = weights(parameters())
    for found in ranks:
        run = found["steps"][kind, size]
        assert run["steps"] == STEPS
        for name, value in run["weights"].items():
            assert torch.equal(value, expected[name]), name
            assert value.numel() == 0 or not torch.equal(value, start[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_keeps_its_share_of_the_state(ranks, alone, kind):
    _, whole, _ = alone[kind]
    held = [found["steps"][kind, 4]["state"] for found in ranks]
    # A parameter in parts has its count of steps once in each of them: a table, and of RODE the
    # experts that began at zero.
    assert whole <= sum(held) <= whole + 2 * 8 * WORLD
    if kind != "Adafactor":  # steps no table in parts
        assert max(held) < 0.6 * whole
    assert [found["steps"][kind, 1]["state"] for found in ranks] == [whole] * WORLD


def test_a_step_takes_few_collectives_of_the_planned_bytes(ranks):
    for found in ranks:
        for (kind, size), run in found["steps"].items():
            # One sum of two numbers per parameter and four per rank, and one or three messages.
            calls = {1: 0, 2: 4, 4: 2}[size]
            numbers = 2 * len(FORMS) + 4 * size
            expected = (calls, run["planned"] + 8 * numbers if calls else 0)
            assert (run["calls"], run["bytes"]) == expected, (kind, size)


@pytest.mark.parametrize("kind", ["RODE", "SOAP", "AdamW"])
def test_state_saved_on_four_ranks_continues_on_any_number(ranks, alone, kind):
    expected, _, _ = alone[kind]
    for found in ranks:
        for size in (*SIZES, "share"):
            for name, value in found["resume"][kind][size].items():
                assert torch.equal(value, expected[name]), (size, name)
    saved = ranks[0]["resume"][kind]["saved"]
    params = parameters()
    optimizer = make(kind, params)
    train(params, optimizer, 0, STEPS // 2)
    own = optimizer.state_dict()
    assert "share" not in saved and saved["state"].keys() == own["state"].keys()
    for number, entries in own["state"].items():
        assert entries.keys() == saved["state"][number].keys()
        for key, value in entries.items():
            assert torch.equal(value, saved["state"][number][key]), (number, key)


def test_a_gradient_too_large_for_a_matrix_that_began_at_zero_changes_nothing(ranks):
    for found in ranks:
        assert "gradient of 'zero'" in found["zero"]["text"]
        assert found["zero"]["same"] and not found["zero"]["changed"]


def test_a_share_is_refused_by_another_number_of_ranks(ranks):
    for rank, found in enumerate(ranks):
        text = found["resume"]["RODE"]["foreign"]["text"]
        assert f"share of rank {rank} of 4, and this is rank {rank % 2} of 2" in text
        assert "consolidated_state_dict()" in text


@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [
        ("nan", "non-finite", "gradient of 'wide' holds NaN or Inf.* on rank 1"),
        ("large", "non-finite", "gradient of 'bias' holds NaN or Inf, or is too large.* on rank 2"),
        ("absent", "missing gradient", "'bias' is present on 3 ranks and absent on 1"),
        ("rate", "process group", "options of rank 2 differ from those of rank 0"),
    ],
)
def test_what_one_rank_cannot_step_no_rank_steps(ranks, case, kind, text):
    first = ranks[0]["bad"][case]
    assert all(found["bad"][case] == first for found in ranks)
    assert first["same"] and first["kind"] == kind and not first["changed"]
    assert re.search(text, first["text"])


def test_a_rank_that_cannot_step_tells_the_others(ranks):
    assert "'bias' is torch.sparse_coo" in ranks[0]["bad"]["shape"]["text"]
    for found in ranks[1:]:
        assert "rank 0 could not step; nothing was changed" in found["bad"]["shape"]["text"]
    for found in ranks:
        assert found["bad"]["shape"]["same"]
        assert found["bad"]["refused"] >= 4
        assert found["bad"]["fine"]["text"] == "" and not found["bad"]["fine"]["same"]
        assert found["bad"]["none"]["same"] and found["bad"]["none"]["text"] == ""


def test_weights_that_only_their_owner_finds_spoiled_end_the_step_everywhere(ranks):
    texts = [found["bad"]["spoiled"] for found in ranks]
    assert all(row["changed"] for row in texts)
    assert sum("of 'wide' hold NaN or Inf" in row["text"] for row in texts) == 1
    assert sum("the step failed on rank" in row["text"] for row in texts) == WORLD - 1


def test_what_is_skipped_is_skipped_on_every_rank(ranks):
    assert [found["skip"] for found in ranks] == [["table", "wide"]] * WORLD


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("options", "options differ: rank 1 has .*'momentum', '0.5'.*rank 0 has"),
        ("policy", "on_non_finite differ: rank 3 has skip, rank 0 has refuse"),
        ("shapes", r"parameters differ: rank 3 has 'wide' F32 \(5, 30\).*rank 0 has"),
        ("version", "version differ: rank 1 has 9.9.9"),
    ],
)
def test_ranks_that_differ_are_refused_on_every_rank(ranks, case, text):
    for found in ranks:
        assert re.search(text, found["construct"][case]["text"])


def test_a_constructor_that_fails_on_one_rank_fails_on_all(ranks):
    texts = [found["construct"]["refused"]["text"] for found in ranks]
    assert "option 'momentum'" in texts[2]
    for rank in (0, 1, 3):
        assert "rank 2 could not make its optimizer: OptionError: [muon]" in texts[rank]
    for found in ranks:
        assert "'nowhere'" in found["construct"]["splits"]["text"]


def test_ranks_that_own_nothing_follow(ranks):
    p = torch.nn.Parameter(values(1)["wide"])
    optimizer = rode.RODE([("wide", p)])
    for t in range(3):
        p.grad = values(10 + t)["wide"]
        optimizer.step()
    assert [found["nothing"]["own"] for found in ranks] == [1, 0, 0, 0]
    for found in ranks:
        assert torch.equal(found["nothing"]["weight"], p)


def test_the_route_is_that_of_all_parameters_whatever_a_rank_owns(ranks):
    expected = train_lora()
    for found in ranks:
        assert all(map(torch.equal, found["lora"], expected))


def test_groups_are_added_until_there_is_state_on_any_rank(ranks):
    for found in ranks:
        assert found["added"]["resumed"]
        assert "make a new optimizer" in found["added"]["late"]["text"]
        assert found["added"]["late"]["same"]


def test_options_that_a_part_of_a_tensor_cannot_have_are_refused(ranks):
    for found in ranks:
        for case in ("set", "load"):
            row = found["changed"][case]
            assert "'table' was divided between ranks" in row["text"], case
            assert "state_dtype='int8'" in row["text"] and row["same"], case
        for case in ("back", "after"):
            assert found["changed"][case]["text"] == "" and not found["changed"][case]["same"], case


def test_it_trains_under_distributed_data_parallel_as_without(ranks):
    for found in ranks:
        for key, value in found["ddp"]["alone"].items():
            assert torch.equal(value, found["ddp"]["shared"][key]), key


def test_a_slow_rank_is_waited_for(ends):
    assert [found["slow"]["text"] for found in ends] == [""] * len(ends)


def test_a_late_and_a_killed_rank_end_the_others_with_its_number(ends):
    for rank, found in enumerate(ends):
        assert found["killed"]["kind"] == "process group"
        # On a busy machine a further rank may not have answered in time.
        assert re.search(r"rank [\d, ]*3 of 4 does not answer", found["killed"]["text"])
        assert found["killed"]["seconds"] < 30
        if rank != 2:
            assert re.search(r"rank [\d, ]*2[\d, ]* of 4 does not answer", found["late"]["text"])
            assert found["late"]["same"] and 3.5 < found["late"]["seconds"] < 30


def test_what_needs_the_whole_or_a_group_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(rode.Error, match="init_process_group"):
        rode.RODE([torch.nn.Parameter(torch.ones(2, 2))], process_group=True)
    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        p = torch.nn.Parameter(torch.randn(4, 4))
        optimizer = rode.RODE([p], process_group=True)
        with pytest.raises(rode.Error, match="consolidated_state_dict"):
            optimizer.named_state()
        with pytest.raises(rode.Error, match="cannot be copied"):
            copy.deepcopy(optimizer)
        p.grad = torch.ones_like(p)
        optimizer.step()
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
        with pytest.raises(rode.Error, match="make a new optimizer"):
            optimizer.step()
        with pytest.raises(rode.Error, match="expected a torch.distributed.ProcessGroup"):
            rode.RODE([p], process_group=3)
        with pytest.raises(rode.Error, match="timeout = -1"):
            rode.RODE([p], process_group=True, timeout=-1)
        with pytest.raises(rode.Error, match="timeout without process_group"):
            rode.RODE([p], timeout=3)
        share = rode.RODE([p], process_group=True).state_dict()
        with pytest.raises(rode.Error, match="without process_group"):
            rode.RODE([p]).load_state_dict(share)
    finally:
        dist.destroy_process_group()
