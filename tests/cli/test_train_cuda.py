# SPDX-License-Identifier: Apache-2.0
"""`rode train --device cuda`: the CPU's losses, stopping and going on, memory. Needs a GPU."""

import json
import signal

import pytest
from train_support import checkpoints, lines, start, wait_for_step

STEPS = 40
FAILED = 1
# Of losses. Runs that differ in rounding alone come apart by 5e-5 in these steps: on the CPU, with
# products in bf16 beside fp32.
TOLERANCE = 5e-3
LEARNED = 0.3  # what the loss falls by at least: far more than the tolerance


def words_of(out, device, *extra, steps=STEPS):
    words = ["train", "--task", "tiny-lm", "--optimizer", "rode", "--out", out, "--quiet"]
    words += ["--threads", 1]
    return [
        str(word) for word in [*words, "--steps", steps, "--warmup", 4, "--device", device, *extra]
    ]


@pytest.fixture(autouse=True)
def needs_a_gpu(rode, needs_training, tmp_path):
    done = rode.call(*words_of(tmp_path / "probe", "cuda", "--until", 1))
    for reason in ("no usable CUDA device", "built without CUDA"):
        if done.returncode == FAILED and reason in done.stderr:
            pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


def train(rode, out, device, *extra):
    """The result of a whole run, and its log."""
    done = rode.call(*words_of(out, device, "--json", *extra))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["status"] == "finished" and result["device"].startswith(device)
    return result, lines(out / "log.jsonl")


def losses(log, kind):
    return [(line["step"], line["loss"]) for line in log if line["kind"] == kind]


def assert_close(log, expected):
    """The same steps and evaluations, each once, with about the same losses."""
    for kind in ("step", "evaluation"):
        found, wanted = losses(log, kind), losses(expected, kind)
        assert [step for step, _ in found] == [step for step, _ in wanted]
        for (step, loss), (_, about) in zip(found, wanted):
            assert loss == pytest.approx(about, abs=TOLERANCE), (kind, step)


@pytest.mark.parametrize("dtype", ["fp32", "auto"])  # auto: bf16 on a GPU
def test_losses_are_those_of_the_cpu(rode, tmp_path, dtype):
    _, cpu = train(rode, tmp_path / "cpu", "cpu", "--set", "ns_dtype=fp32")
    values = [loss for _, loss in losses(cpu, "evaluation")]
    assert values[0] - values[-1] > LEARNED
    _, cuda = train(rode, tmp_path / "gpu", "cuda", "--set", f"ns_dtype={dtype}")
    assert_close(cuda, cpu)


@pytest.mark.parametrize("begun_on", ["cuda", "cpu"])
def test_a_paused_run_goes_on(rode, tmp_path, begun_on):
    _, whole = train(rode, tmp_path / "whole", "cuda")
    parts = tmp_path / "parts"
    paused = rode.call(*words_of(parts, begun_on, "--until", 15))
    assert paused.returncode == 0, paused.stderr
    assert checkpoints(parts)[-1].name == "step-00000015.safetensors"
    result, log = train(rode, parts, "cuda", "--resume")
    assert result["steps"] == STEPS
    assert_close(log, whole)


def test_ctrl_c_saves_and_the_run_goes_on(rode, tmp_path):
    out, many = tmp_path / "run", 100000
    process = start(rode, *words_of(out, "cuda", steps=many))
    try:
        wait_for_step(out, 20, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == FAILED and "--resume" in errors, errors
    done = len(losses(lines(out / "log.jsonl"), "step"))
    assert done >= 20 and checkpoints(out)[-1].name == f"step-{done:08}.safetensors"
    resumed = rode.call(*words_of(out, "cuda", "--resume", "--until", done + 10, steps=many))
    assert resumed.returncode == 0 and f"after step {done}" in resumed.stderr, resumed.stderr
    steps = [step for step, _ in losses(lines(out / "log.jsonl"), "step")]
    assert steps == list(range(done + 10))


def test_peak_memory_has_the_workspace_in_it(rode, tmp_path):
    """Operands of another size change the workspace alone: all else is Torch's, and the same."""
    half, _ = train(rode, tmp_path / "half", "cuda", "--set", "ns_dtype=bf16")
    full, _ = train(rode, tmp_path / "full", "cuda", "--set", "ns_dtype=fp32")
    assert half["state_bytes"] == full["state_bytes"] > 0
    more = full["workspace_bytes"] - half["workspace_bytes"]
    assert more != 0
    assert full["peak_memory_bytes"] - half["peak_memory_bytes"] == pytest.approx(more, rel=0.1)
    weights = 4 * half["parameters"]
    assert half["peak_memory_bytes"] > 2 * weights + half["state_bytes"] + half["workspace_bytes"]
