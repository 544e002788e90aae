# SPDX-License-Identifier: Apache-2.0
"""`rode train` on several processes: the same curve, checkpoints for any number, faults."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest
from safetensors import safe_open
from train_support import checkpoints, lines, start, train_words, wait_for_step, what_counts

FAILED, USAGE = 1, 2
TIMEOUT = ("--timeout", 30)
pytestmark = pytest.mark.usefixtures("needs_training")
# Gradients are added in another order, and twenty steps let the difference grow.
ROUNDING = 2e-4


def words(task, out, *extra):
    return train_words(task, out, *TIMEOUT, "--quiet", *extra)


def trained(rode, task, out, *extra):
    done = rode.call(*words(task, out, *extra))
    assert done.returncode == 0, done.stderr
    return done


def losses(out):
    log = lines(out / "log.jsonl")
    steps = [line["loss"] for line in log if line["kind"] == "step"]
    return steps, [line["loss"] for line in log if line["kind"] == "evaluation"]


def assert_same_curve(out, other):
    for own, others in zip(losses(out), losses(other), strict=True):
        assert own == pytest.approx(others, rel=ROUNDING)


def form(value):
    """Keys at every level, and types."""
    if isinstance(value, dict):
        return {key: form(entry) for key, entry in value.items()}
    return type(value).__name__


def rank_processes(launcher):
    """Ids of the processes that the launcher has started, by rank."""
    found = {}
    for folder in os.listdir("/proc"):
        if not folder.isdigit():
            continue
        try:
            parent = open(f"/proc/{folder}/stat").read().rsplit(")", 1)[1].split()[1]
            variables = open(f"/proc/{folder}/environ").read().split("\0")
        except OSError:
            continue
        if int(parent) == launcher.pid:
            found.update({int(v[5:]): int(folder) for v in variables if v.startswith("RANK=")})
    return found


def test_ranks_give_the_curve_and_the_folder_of_one_process(rode, task, tmp_path):
    for count in (1, 2, 4):
        trained(rode, task, tmp_path / str(count), "--ranks", count, "--steps", 20)
    one = tmp_path / "1"
    files = sorted(file.name for file in one.iterdir() if "tfevents" not in file.name)
    for count in ("2", "4"):
        out = tmp_path / count
        assert_same_curve(out, one)
        assert losses(out) != losses(one), "they were added in another order"
        assert sorted(f.name for f in out.iterdir() if "tfevents" not in f.name) == files
        # The same lines: norms and matrices are those of all parameters, in the same order.
        for own, others in zip(lines(out / "log.jsonl"), lines(one / "log.jsonl"), strict=True):
            own.pop("checksum", None), others.pop("checksum", None)
            assert form(own) == form(others)
            assert list(own.get("matrices", {})) == list(others.get("matrices", {}))
            for key in ("gradient_norm", "weight_norm", "update_norm"):
                assert own.get(key, 0) == pytest.approx(others.get(key, 0), rel=1e-3)
        with (
            safe_open(checkpoints(out)[-1], "pt") as mine,
            safe_open(checkpoints(one)[-1], "pt") as other,
        ):
            assert sorted(mine.keys()) == sorted(other.keys())
            for name in other.keys():
                assert mine.get_slice(name).get_shape() == other.get_slice(name).get_shape()
        result = json.loads((out / "result.json").read_text())
        alone = json.loads((one / "result.json").read_text())
        assert result["ranks"] == int(count)
        assert result["state_bytes"] == alone["state_bytes"]
        environment = json.loads((out / "run.json").read_text())["environment"]
        assert environment["ranks"] == int(count)
        assert environment["ranks_backend"] == "gloo"  # on CPUs


def test_saved_on_four_ranks_resumes_on_two_and_on_one(rode, task, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "4"
    trained(rode, task, whole, "--steps", 20)
    paused = trained(rode, task, out, "--ranks", 4, "--steps", 20, "--until", 10)
    assert "paused after step 10" in paused.stdout
    for count in (2, 1):
        resumed = shutil.copytree(out, tmp_path / str(count))
        trained(rode, task, resumed, "--ranks", count, "--steps", 20, "--resume")
        assert_same_curve(resumed, whole)


def test_resumed_on_as_many_ranks_it_is_the_same_to_the_bit(rode, task, tmp_path):
    # Numbers of dropout depend on seed, step and rank alone.
    task.write_text(task.read_text().replace("heads = 2", "heads = 2\ndropout = 0.1", 1))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    trained(rode, task, whole, "--ranks", 2, "--steps", 20)
    trained(rode, task, parts, "--ranks", 2, "--steps", 20, "--until", 7)
    trained(rode, task, parts, "--ranks", 2, "--steps", 20, "--resume")
    assert what_counts(parts) == what_counts(whole)


def test_collectives_of_a_step_are_few_and_its_bytes_those_of_gradients_and_weights(
    rode, task, tmp_path
):
    def counted(out):
        result = json.loads((out / "result.json").read_text())
        return result["collectives"], result["collective_bytes"], result["parameters"]

    for steps in (5, 15):
        trained(rode, task, tmp_path / str(steps), "--ranks", 2, "--steps", steps)
    short, long = counted(tmp_path / "5"), counted(tmp_path / "15")
    # Stop, gradients, loss, agreement, weights, norms.
    calls = (long[0] - short[0]) / 10
    assert 6 <= calls < 7
    bytes_sent = (long[1] - short[1]) / 10
    weights = 4 * long[2]
    # Gradients whole, of the weights this rank's half, and what agreements need.
    assert weights * 1.4 < bytes_sent < weights * 2


def test_parts_of_a_batch_are_summed_once_and_uneven_batches_count_their_rows(rode, task, tmp_path):
    # 50 samples in batches of 8: the last of an epoch has two rows for four ranks.
    task.write_text(task.read_text().replace("steps = 120", "epochs = 2"))
    values = ("--set", "train.accumulate=4", "--set", "train.eval_interval=1")
    trained(rode, task, tmp_path / "one", *values)
    trained(rode, task, tmp_path / "four", "--ranks", 4, *values)
    assert len(losses(tmp_path / "one")[0]) == 14
    assert_same_curve(tmp_path / "four", tmp_path / "one")


def test_a_batch_that_cannot_be_divided_is_refused_with_a_remedy(rode, task, tmp_path):
    done = rode.call(*words(task, tmp_path / "out", "--ranks", 3))
    assert done.returncode == USAGE
    assert "a batch of 8 rows cannot be divided between 3 ranks" in done.stderr
    assert "--ranks 2" in done.stderr and "--set train.batch=9" in done.stderr
    assert not (tmp_path / "out").exists()
    assert done.stderr.count("rode: error") == 1


def test_nccl_is_refused_where_ranks_have_no_gpu(rode, task, tmp_path):
    with_nccl = ("--device", "cpu", "--ranks-backend", "nccl")
    done = rode.call(*words(task, tmp_path / "out", "--ranks", 2, *with_nccl))
    assert done.returncode == FAILED
    assert "backend = nccl is not available: rank 0: no CUDA device was given" in done.stderr
    assert done.stderr.count("is not available") == 1
    assert not (tmp_path / "out").exists()


def test_words_and_environment_that_disagree_are_refused(rode, task, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    process = start(rode, *words(task, tmp_path / "out", "--ranks", 2))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == USAGE
    assert "--ranks 2 but WORLD_SIZE = 4" in errors


def test_a_rank_that_is_killed_ends_the_others_and_is_named(rode, task, tmp_path):
    out = tmp_path / "out"
    process = start(rode, *words(task, out, "--ranks", 3, "--set", "train.batch=9"))
    wait_for_step(out, 15, process)
    ranks = rank_processes(process)
    assert sorted(ranks) == [0, 1, 2]
    os.kill(ranks[1], signal.SIGKILL)
    began = time.monotonic()
    output, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 30
    assert process.returncode == FAILED and output == ""
    assert "rank 1: was ended by signal 9" in errors
    assert errors.count("rank 1 of 3 does not answer") == 2, errors  # ranks 0 and 2
    assert "Traceback" not in errors and "terminate" not in errors
    for file in checkpoints(out):
        with safe_open(file, "pt") as whole:
            assert whole.keys()
    assert not list(out.rglob("*.tmp*"))
    trained(rode, task, out, "--set", "train.batch=9", "--resume")


def test_a_rank_that_stops_answering_is_named_after_the_timeout(rode, task, tmp_path):
    out = tmp_path / "out"
    process = start(rode, *train_words(task, out, "--timeout", 3, "--quiet", "--ranks", 2))
    wait_for_step(out, 5, process)
    ranks = rank_processes(process)
    os.kill(ranks[1], signal.SIGSTOP)
    try:
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == FAILED
    assert "rank 1 of 2 does not answer" in errors
    assert "rank 1: did not end within 3 s" in errors


@pytest.mark.parametrize("receiver", ["launcher", "rank 1"])
def test_a_signal_saves_the_last_step_on_all(rode, task, tmp_path, receiver):
    out = tmp_path / "out"
    process = start(rode, *words(task, out, "--ranks", 2))
    wait_for_step(out, 12, process)
    if receiver == "launcher":
        process.send_signal(signal.SIGTERM)
    else:
        os.kill(rank_processes(process)[1], signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == FAILED
    assert errors.count("which is saved; continue with --resume") == 1, errors
    saved = int(checkpoints(out)[-1].stem[5:])
    assert saved >= 12 and f"stopped after step {saved}," in errors
    assert len(losses(out)[0]) == saved


def test_a_run_that_diverges_ends_as_diverged_on_all_ranks(rode, task, tmp_path):
    out = tmp_path / "out"
    extra = ("--set", "lr=1e30", "--set", "lr_rest=1e30", "--ranks", 2)
    done = rode.call(*train_words(task, out, *TIMEOUT, *extra, optimizer="adamw"))
    assert done.returncode == FAILED
    assert json.loads((out / "result.json").read_text())["status"] == "diverged"
    assert done.stderr.count("expected finite numbers") == 1, done.stderr


def test_a_rank_with_other_options_is_named_on_every_rank(rode, task, tmp_path):
    """As torchrun starts them: by the environment."""
    out = tmp_path / "out"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    processes = []
    for rank in (0, 1):
        place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_PORT": port}
        variables = {**os.environ, "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        variables.update({key: str(value) for key, value in place.items()})
        call = [str(rode.binary), *words(task, out, "--set", f"lr=1e-{2 + rank}")]
        processes.append(subprocess.Popen(call, env=variables, stderr=subprocess.PIPE, text=True))
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == FAILED
        assert "rank 1 was started with different options from rank 0: /options/lr" in errors
    assert not out.exists()


def test_help_tells_of_ranks(rode):
    text = rode.call("train", "--help").stdout
    assert "--ranks" in text and "--timeout" in text and "torchrun" in text
