# SPDX-License-Identifier: Apache-2.0
"""tools/scale_simulator.py computes what the engine plans, and docs/scale.md has its figures."""

import json
import sys

import pytest
from conftest import ROOT

from rode import _engine

sys.path.append(str(ROOT / "tools"))
import scale_simulator as scale  # noqa: E402

MEASURED = ROOT / "bench" / "results" / "h200.json"
RATES = scale.Rates(MEASURED)
DENSE = scale.Model("114M", 12, 768, 2048, 32768, 768, tied=True)
EXPERTS = next(model for model in scale.MODELS if model.name == "experts 30B")


def planned(model, ranks):
    rows = [
        (None, f"m{i}.{j}", 0, [m, n], "BF16", "out_in")
        for i, (m, n, count) in enumerate(model.shared())
        for j in range(count)
    ]
    rows += [
        (None, f"experts{i}.{j}", 0, [model.experts, m, n], "BF16", "experts_out_in")
        for i, (m, n, count) in enumerate(model.of_experts())
        for j in range(count)
    ]
    matrices = ("rode", [], "matrix", (None, True), rows)
    rest = ("rode", [], "rest", (None, True), [(None, "rest", 0, [model.rest], "BF16", "out_in")])
    items = [*_engine.shard_items(matrices), *_engine.shard_items(rest)]
    return _engine.plan_shards(items, ranks, 16, 64 << 20)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_bytes_state_and_balance_are_those_of_the_plan(model, ranks):
    cost = scale.simulate(model, ranks, "data parallel", RATES)
    plan = planned(model, ranks)
    assert plan.received_bytes == pytest.approx(cost.received, rel=0.01)
    assert max(state for *_, state in plan.loads) == pytest.approx(cost.state, rel=0.1)
    assert plan.cost_ratio <= 1.05 and cost.balance <= 1.05


class GPT2(scale.Model):
    """Queries, keys and values in one matrix, an MLP without a gate, positions that are learned."""

    def shared(self):
        w, h, n = self.width, self.hidden, self.layers
        return [(3 * w, w, n), (w, w, n), (h, w, n), (w, h, n)]


def test_one_gpu_takes_what_was_measured_there():
    """Shapes whose time was measured, but that no rate was taken from."""
    assert "gpt2" not in [shapes for shapes, _ in scale.Rates.FITTED]
    rows = json.loads(MEASURED.read_text())["rows"]
    row = next(r for r in rows if (r["shapes"], r["optimizer"], r["set"]) == ("gpt2", "rode", []))
    model = GPT2("gpt2", 12, 768, 3072, 50257 + 1024, 768, tied=True)
    assert model.matrix_parameters == row["managed_parameters"]
    assert model.rest == pytest.approx(row["delegated_parameters"], rel=0.01)
    cost = scale.simulate(model, 1, "data parallel", RATES, width=4)
    assert cost.received == cost.transfer == 0
    assert 1e3 * cost.step == pytest.approx(row["median_ms"], rel=0.05)


def test_rows_of_the_table_leave_room_for_activations():
    full = [
        cost
        for model in scale.MODELS
        for ranks in scale.GPUS
        for way in ("data parallel", "sharded")
        if 0.75 * 141e9 < (cost := scale.simulate(model, ranks, way, RATES)).memory < 141e9
    ]
    lines = scale.table(RATES)
    assert full and "without activations" in lines[0]
    for cost in full:
        start = f"| {cost.model} | {cost.ranks} | {cost.way} |"
        assert not any(line.startswith(start) for line in lines), start


def test_more_gpus_never_hold_more_and_sharding_sends_less():
    for model in scale.MODELS:
        shares = [scale.simulate(model, ranks, "sharded", RATES) for ranks in scale.GPUS]
        assert all(a.state >= b.state for a, b in zip(shares, shares[1:], strict=False))
        for ranks, cost in zip(scale.GPUS[1:], shares[1:], strict=True):
            whole = scale.simulate(model, ranks, "data parallel", RATES)
            assert cost.received < whole.received and cost.memory < whole.memory


def test_the_documented_table_is_what_the_tool_prints():
    text = (ROOT / "docs" / "scale.md").read_text()
    for line in scale.table(RATES):
        assert line in text, line
