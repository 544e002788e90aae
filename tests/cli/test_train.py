# SPDX-License-Identifier: Apache-2.0
"""`rode train`: runs that are killed and resumed, signals, errors."""

import json
import platform
import random
import resource
import signal
import time

import pytest
from safetensors.torch import load_file
from train_support import (
    TASK,
    call_here,
    checkpoints,
    lines,
    start,
    train_words,
    wait_for_step,
    what_counts,
)

FAILED, USAGE = 1, 2
SEED = 20240520
pytestmark = pytest.mark.usefixtures("needs_training")


def wait_for_start(out, process, starts):
    """Until the run has opened its log for the n-th time: a start makes one file of events."""
    for _ in range(3000):
        if process.poll() is not None or len(list(out.glob("events.*"))) >= starts:
            return
        time.sleep(0.002)
    raise AssertionError("the run does not start")


def test_killed_at_random_moments_and_resumed_is_the_same_to_the_bit(rode, task, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert rode.call(*train_words(task, whole)).returncode == 0
    draw = random.Random(SEED)
    print("seed", SEED)
    kills, resumed_from = 0, set()
    for _ in range(40):
        process = start(rode, *train_words(task, parts, "--resume"))
        try:
            if kills < 6 and draw.random() < 0.2:
                time.sleep(draw.uniform(0, 0.5))  # while it starts
                process.kill()
            elif kills < 6:
                # While it trains, evaluates or writes a checkpoint.
                wait_for_start(parts, process, len(list(parts.glob("events.*"))) + 1)
                saved = [int(file.stem[5:]) for file in checkpoints(parts)]
                wait_for_step(parts, max(saved, default=0) + draw.randrange(1, 25), process)
                time.sleep(draw.uniform(0, 0.01))
                process.kill()
            process.communicate(timeout=60)
        finally:
            process.kill()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
        newest = checkpoints(parts)[-1].name if checkpoints(parts) else None
        log = parts / "log.jsonl"
        steps = log.read_text().count('"kind":"step"') if log.exists() else 0
        print(f"kill {kills}: {steps} steps in the log, newest checkpoint {newest}")
        resumed_from.add(newest)
    assert process.returncode == 0
    assert kills >= 3 and len(resumed_from) >= 2, (kills, resumed_from)
    assert what_counts(parts) == what_counts(whole)
    assert not list(parts.rglob("*.tmp"))
    assert len(checkpoints(parts)) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_stops(rode, task, tmp_path, number):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert rode.call(*train_words(task, whole, "--seed", 3)).returncode == 0
    process = start(rode, *train_words(task, parts, "--seed", 3))
    wait_for_step(parts, 13, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == FAILED and "--resume" in errors, errors
    done = sum(line["kind"] == "step" for line in lines(parts / "log.jsonl"))
    assert checkpoints(parts)[-1].name == f"step-{done:08}.safetensors"
    assert not (parts / "result.json").exists()
    resumed = rode.call(*train_words(task, parts, "--seed", 3, "--resume"))
    assert resumed.returncode == 0 and f"after step {done}" in resumed.stderr
    assert what_counts(parts) == what_counts(whole)


def test_a_signal_inside_a_batch_or_an_evaluation_drops_it(rode, task, tmp_path):
    """Both have hundreds of parts: the signal comes while one of them is under way."""
    parts = "batch = 400\naccumulate = 400"
    text = TASK.replace("batch = 8", parts).replace("eval_samples = 8", "eval_samples = 800")
    text = text.replace("vocab_size = 64", "vocab_size = 64\ndropout = 0.1")
    task.write_text(text.replace("steps = 120", "steps = 2").replace("warmup = 10", "warmup = 0"))
    whole, out = tmp_path / "whole", tmp_path / "parts"
    assert rode.call(*train_words(task, whole)).returncode == 0
    for number, steps in ((signal.SIGINT, 1), (signal.SIGTERM, 2)):
        process = start(rode, *train_words(task, out, "--resume"))
        wait_for_step(out, steps, process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == FAILED and f"stopped after step {steps}," in errors, errors
        assert checkpoints(out)[-1].name == f"step-{steps:08}.safetensors"
        log = lines(out / "log.jsonl")
        assert [line["step"] for line in log if line["kind"] == "evaluation"] == [0]
    assert rode.call(*train_words(task, out, "--resume")).returncode == 0
    assert what_counts(out) == what_counts(whole)


def notes(errors):
    return [line for line in errors.splitlines() if line.startswith("rode: note: ")]


def test_the_progress_line_shows_only_what_is_known(rode, task, tmp_path):
    done = rode.call(*train_words(task, tmp_path / "run", "--steps", 1))
    assert done.returncode == 0, done.stderr
    first, last = (line.split("  ") for line in done.stderr.splitlines())
    assert first[0].endswith("0/1") and [words.split()[0] for words in first[1:]] == ["valid"]
    assert [words.split()[0] for words in last[1:4]] == ["loss", "valid", "lr"]
    assert last[-1].endswith("left") and last[-2].endswith("tokens/s")


def test_a_warning_of_torch_is_a_note_in_plain_text(rode, task, tmp_path, monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "none-such")  # one that Torch warns of
    done = call_here(rode, *train_words(task, tmp_path / "run", "--steps", 1, "--json"))
    assert done.returncode == 0, done.stderr
    (note,) = notes(done.stderr)
    assert "Torch warns: " in note and "ATEN_CPU_CAPABILITY: none-such" in note
    assert "[W" not in done.stderr and ".cpp" not in done.stderr
    assert json.loads(done.stdout)["warnings"] == [note.removeprefix("rode: note: ")]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="ONEDNN_MAX_CPU_ISA is of x86 alone")
def test_bf16_on_a_cpu_without_it_is_told_at_the_start(rode, task, tmp_path, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # as on a CPU that has no more
    for key, told in (("precision", 1), ("parameters", 1), (None, 0)):
        extra = f'\n{key} = "bf16"' if key else ""
        task.write_text(TASK.replace("batch = 8", f"batch = 8{extra}"))
        out = tmp_path / str(key)
        words = train_words(task, out, "--steps", 1, "--json", optimizer="adamw")
        done = call_here(rode, *words)
        assert done.returncode == 0, done.stderr
        found = [line for line in notes(done.stderr) if "is slow on this CPU" in line]
        assert len(found) == told and all(f'{key} = "bf16"' in line for line in found), done.stderr
        if told:
            assert done.stderr.index(found[0]) < done.stderr.index("0/1")
        result = json.loads(done.stdout)
        assert result.get("warnings", []) == [n.removeprefix("rode: note: ") for n in found]


def test_a_run_in_the_folder_is_not_replaced_by_accident(rode, task, tmp_path):
    out = tmp_path / "run"
    assert rode.call(*train_words(task, out, "--steps", 4)).returncode == 0
    again = rode.call(*train_words(task, out, "--steps", 4))
    assert again.returncode == USAGE and "--overwrite" in again.stderr
    other = rode.call(*train_words(task, out, "--steps", 4, "--resume", "--set", "lr=0.5"))
    assert other.returncode == USAGE and "/options/lr" in other.stderr
    before = (out / "log.jsonl").read_bytes()
    done = rode.call(*train_words(task, out, "--steps", 4, "--resume", "--json"))
    assert done.returncode == 0 and json.loads(done.stdout)["steps"] == 4
    assert (out / "log.jsonl").read_bytes() == before
    fresh = rode.call(*train_words(task, out, "--steps", 4, "--overwrite"))
    assert fresh.returncode == 0 and (out / "log.jsonl").read_bytes() == before


def everything(folder):
    """Names, sizes and times of what is below: what a process that writes nothing leaves alone."""
    found = [folder, *folder.rglob("*")]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def test_a_finished_run_in_a_folder_that_cannot_be_written_gives_its_result(rode, task, tmp_path):
    out = tmp_path / "run"
    words = train_words(task, out, "--steps", 4, "--resume")
    first = rode.call(*words, "--json")
    assert first.returncode == 0 and "finished" not in first.stderr
    (out / ".lock").unlink()
    out.chmod(0o555)  # who may write nevertheless, as root may, would leave a lock
    before = everything(tmp_path)
    again = rode.call(*words, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == json.loads(first.stdout)
    assert everything(tmp_path) == before
    assert f"the run in '{out}' is finished" in again.stderr
    shown = rode.call(*words)
    assert shown.returncode == 0 and "validation loss" in shown.stdout
    out.chmod(0o755)
    (out / ".lock").mkdir()  # cannot be opened, by root either
    assert rode.call(*words).returncode == 0
    (out / "result.json").unlink()
    unfinished = rode.call(*words)
    assert unfinished.returncode == FAILED and ".lock" in unfinished.stderr


def test_a_diverged_run_says_so_and_keeps_its_checkpoint(rode, task, tmp_path):
    out = tmp_path / "run"
    # The decay makes weights grow by a factor a step: out of range only after some checkpoints.
    task.write_text(TASK.replace("checkpoint_interval = 10", "checkpoint_interval = 3"))
    rates = ["--set", "lr=3e-3", "--set", "weight_decay=1e5", "--set", "weight_decay_rest=0"]
    done = rode.call(*train_words(task, out, *rates, optimizer="adamw"))
    assert done.returncode == FAILED
    saved = checkpoints(out)
    assert saved
    for word in ("step", "lower the rates", str(saved[-1]), "--overwrite or another --out"):
        assert word in done.stderr, done.stderr
    assert json.loads((out / "result.json").read_text())["status"] == "diverged"
    assert lines(out / "log.jsonl")[-1]["kind"] == "diverged"
    for file in saved:
        assert all(
            bool(t.isfinite().all()) for t in load_file(file).values() if t.is_floating_point()
        )


@pytest.mark.parametrize("meets", ["log", "checkpoint"])
def test_a_full_disk_leaves_the_checkpoint_before_it(rode, task, tmp_path, meets):
    # Steps enough for a log larger than a checkpoint: the limit can then lie between them.
    task.write_text(TASK.replace("steps = 120", "steps = 800"))
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert rode.call(*train_words(task, whole)).returncode == 0
    size, log = checkpoints(whole)[-1].stat().st_size, (whole / "log.jsonl").stat().st_size
    assert size < log
    limit = (size + log) // 2 if meets == "log" else size // 2

    def small_disk():
        # A limit on the size of a file stands for the disk's.
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    words = train_words(task, out, "--no-tensorboard")
    process = start(rode, *words, preexec_fn=small_disk, restore_signals=False)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == FAILED and "free" in errors, errors
    assert len(checkpoints(out)) == (2 if meets == "log" else 0)
    assert not list((out / "checkpoints").glob(".rode-*"))
    assert rode.call(*train_words(task, out, "--resume")).returncode == 0
    assert what_counts(out) == what_counts(whole)


def test_wrong_words_are_wrong_usage(rode, task, tmp_path):
    out = tmp_path / "run"
    for words, hint in (
        (train_words("tiny-ml", out), "tiny-lm"),
        (train_words(task, out, optimizer="rod"), "rode"),
        (train_words(task, out, "--set", "lrr=1"), "lr"),
        (train_words(task, out, "--steps", 0), "--steps"),
        (train_words(task, out, "--keep", 0), "expected a whole number from 1"),
        (train_words(task, out, "--until", "1.5"), "expected a whole number from 1"),
        (train_words(task, out, "--threads", "two"), "expected a whole number from 1"),
        (train_words(task, out, "--resume", "--overwrite"), "--resume"),
        (train_words(task, out, "--device", "tpu"), "--device"),
    ):
        done = rode.call(*words)
        assert done.returncode == USAGE and hint in done.stderr, (words, done.stderr)
        assert len(done.stderr) < 500
        assert not out.exists()


def test_a_second_process_is_refused_and_does_no_harm(rode, task, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "run"
    task.write_text(TASK.replace("steps = 120", "steps = 600"))
    assert rode.call(*train_words(task, whole)).returncode == 0
    first = start(rode, *train_words(task, out))
    wait_for_step(out, 5, first)
    first.send_signal(signal.SIGSTOP)  # so that it cannot end before the others have tried
    try:
        half = out / "checkpoints" / ".rode-1-2.tmp"
        half.write_bytes(b"being written")
        for flag in ("--resume", "--overwrite"):
            second = rode.call(*train_words(task, out, flag))
            assert second.returncode == FAILED, second.stderr
            for word in ("[train]", str(out), "another process trains there", "another --out"):
                assert word in second.stderr, second.stderr
        assert half.exists()
    finally:
        first.send_signal(signal.SIGCONT)
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 0, errors
    assert what_counts(out) == what_counts(whole)


def test_a_killed_process_leaves_no_lock(rode, task, tmp_path):
    out = tmp_path / "run"
    process = start(rode, *train_words(task, out))
    wait_for_step(out, 5, process)
    process.kill()
    process.communicate(timeout=60)
    assert rode.call(*train_words(task, out, "--resume")).returncode == 0


def test_a_pause_is_told_as_json_too(rode, task, tmp_path):
    out = tmp_path / "run"
    words = train_words(task, out, "--until", 15, "--json", "--resume")
    done = rode.call(*words)
    assert done.returncode == 0, done.stderr
    paused = json.loads(done.stdout)
    assert paused["status"] == "paused" and paused["step"] == 15 and paused["total"] == 120
    assert not (out / "result.json").exists()
    assert checkpoints(out)[-1].name == "step-00000015.safetensors"


def test_a_wrong_key_in_the_task_is_named_with_its_line(rode, task, tmp_path):
    out = tmp_path / "run"
    for right, wrong in (("batch = 8", "bach = 8"), ("lr_rho = 1e-2", "lr_roh = 1e-2")):
        task.write_text(TASK.replace(right, wrong))
        done = rode.call(*train_words(task, out))
        assert done.returncode == FAILED, done.stderr
        for word in ("small.toml", "line", wrong.split()[0], right.split()[0]):
            assert word in done.stderr, done.stderr
        assert not out.exists()


def test_an_epoch_ends_with_what_is_left_of_it(rode, task, tmp_path):
    """50 samples in batches of 8: six whole ones and one of 2, in one part or in several."""
    text = (
        task.read_text()
        .replace("steps = 120", "epochs = 2")
        .replace("interval = 20", "interval = 1")
    )
    task.write_text(text.replace("checkpoint_interval = 10", "checkpoint_interval = 1"))
    results, weights = [], []
    for parts in (1, 4):
        out = tmp_path / f"run{parts}"
        words = train_words(task, out, "--json", "--set", f"train.accumulate={parts}")
        paused = rode.call(*words, "--until", 7)
        assert paused.returncode == 0, paused.stderr
        done = rode.call(*words, "--resume")
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
        weights.append(load_file(out / "model.safetensors"))
    for result in results:
        assert (result["steps"], result["units"]) == (14, 2 * 50 * 16)
    for name, value in weights[0].items():
        assert abs(value - weights[1][name]).max() < 1e-5, name
