# SPDX-License-Identifier: Apache-2.0
"""`rode bench systems`: the compute and memory table, at a scale that two cores can measure."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("needs_training")

USAGE = 2
SHORT = ("--scale", "tiny", "--device", "cpu", "--threads", 1, "--warmup", 1, "--steps", 3)


def test_measures_every_row_of_both_tasks(rode, tmp_path):
    words = ("--optimizers", "adamw,soap,rode", "--loop", "--runs", 2, "--out", tmp_path / "s.json")
    done = rode.call("bench", "systems", *SHORT, *words)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "s.json").read_text())
    assert result["scale"] == "tiny" and result["runs"] == 2 and result["environment"]["torch"]
    rows = {(row["task"], row["optimizer"]): row for row in result["rows"]}
    assert len(rows) == 8
    for (task, name), row in rows.items():
        assert task in done.stdout and name in done.stdout
        assert len(row["step_ms_of_runs"]) == 2
        assert 0 < row["optimizer_ms"] < row["step_ms"]
        assert "torch_peak_bytes" not in row  # of CUDA's allocator
        adamw = rows[task, "adamw"]
        expected = adamw["step_ms"] / row["step_ms"]
        assert row["throughput_vs_adamw"] == pytest.approx(expected)
        if name == "adamw":
            # Two moments in fp32, and a counter of steps for each of a few tensors.
            assert 0 <= row["state_bytes"] - 8 * row["parameters"] < 1000
        if name.startswith("rode"):  # one moment per matrix; AdamW has two of everything
            assert row["state_bytes"] < adamw["state_bytes"]
    for task in ("qwen2-114m", "resnet50-imagenet"):
        loop, fused = rows[task, "rode (loop)"], rows[task, "rode (fused)"]
        assert loop["state_bytes"] == fused["state_bytes"]


def test_refuses_what_does_not_exist(rode):
    assert rode.call("bench", "systems", "--tasks", "gpt3").returncode == USAGE
    assert rode.call("bench", "systems", *SHORT, "--optimizers", "adam").returncode == USAGE
