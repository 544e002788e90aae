# SPDX-License-Identifier: Apache-2.0
"""Event files of `rode train`: what the log holds, read by TensorBoard's rules."""

import signal
import struct

import pytest
from train_support import TASK, lines, start, train_words, wait_for_step

START = 1  # status of a session's log
pytestmark = pytest.mark.usefixtures("needs_training")


def field_values(data):
    """The fields of a protobuf message: (number, value), bytes for nested ones."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        number, wire = key >> 3, key & 7
        if wire == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}.get(wire) or varint()
        yield number, data[at : at + size]
        at += size


def events_of(path):
    """Events of a file: (step, scalars by tag, whether a session starts)."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = dict(field_values(data[at + 12 : at + 12 + length]))
        scalars = {}
        for _, value in field_values(event.get(5, b"")):
            fields = dict(field_values(value))
            scalars[fields[1].decode()] = struct.unpack("<f", fields[2])[0]
        yield event[2], scalars, dict(field_values(event.get(7, b""))).get(1) == START
        at += 16 + length


def read_folder(folder):
    """Tag -> [(step, value)], as TensorBoard reads: files by name; a start voids its step and all
    later ones of what was read before."""
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for step, scalars, starts in events_of(path):
            if starts:
                found = {
                    tag: [point for point in points if point[0] < step]
                    for tag, points in found.items()
                }
            for tag, value in scalars.items():
                found.setdefault(tag, []).append((step, value))
    return found


def assert_is_the_log(found, log):
    """Every number of the log once, in its order."""
    for kind, prefix in (("step", "train"), ("evaluation", "validation")):
        own = [line for line in log if line["kind"] == kind]
        for key in {key for line in own for key in line} - {"kind", "step", "matrices", "checksum"}:
            expected = [(line["step"], line[key]) for line in own if key in line]
            points = found[f"{prefix}/{key}"]
            assert [step for step, _ in points] == [step for step, _ in expected], (kind, key)
            for (_, read), (_, written) in zip(points, expected):
                assert read == pytest.approx(written, rel=1e-6)
    expected = {}
    for line in log:
        for name, values in line.get("matrices", {}).items():
            for key in values:
                expected.setdefault(f"matrix/{name}/{key}", []).append(line["step"])
    assert expected
    for tag, steps in expected.items():
        assert [step for step, _ in found[tag]] == steps, tag


def test_events_hold_what_the_log_holds(rode, task, tmp_path):
    out = tmp_path / "run"
    assert rode.call(*train_words(task, out, "--steps", 40)).returncode == 0
    log = lines(out / "log.jsonl")
    assert [x["step"] for x in log if x["kind"] == "evaluation"] == [0, 20, 40]
    assert_is_the_log(read_folder(out), log)


# At an evaluation, with a checkpoint after it; between two of them; at both once more.
@pytest.mark.parametrize("pauses", [[20], [25], [20, 21, 40, 40, 41]])
def test_a_paused_run_loses_no_evaluation(rode, task, tmp_path, pauses):
    out = tmp_path / "run"
    for pause in pauses:
        done = rode.call(*train_words(task, out, "--steps", 60, "--resume", "--until", pause))
        assert done.returncode == 0, done.stderr
    assert rode.call(*train_words(task, out, "--steps", 60, "--resume")).returncode == 0
    assert_is_the_log(read_folder(out), lines(out / "log.jsonl"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_loses_no_evaluation(rode, task, tmp_path, number):
    """Checkpoints at every evaluation only: a killed run continues from one, with its step again."""
    out = tmp_path / "run"
    rarely = TASK.replace("checkpoint_interval = 10", "checkpoint_interval = 20")
    task.write_text(rarely.replace("steps = 120", "steps = 400"))
    process = start(rode, *train_words(task, out))
    wait_for_step(out, 25, process)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert rode.call(*train_words(task, out, "--resume")).returncode == 0
    assert_is_the_log(read_folder(out), lines(out / "log.jsonl"))


def test_starts_within_a_second_are_read_in_their_order(rode, task, tmp_path):
    """By processes of any number, and where the clock was set back."""
    out = tmp_path / "run"
    words = train_words(task, out, "--steps", 20, "--resume")
    assert rode.call(*words, "--until", 5).returncode == 0
    (first,) = out.glob("events.*")
    first.rename(out / "events.out.tfevents.9876543210.007.999999999.rode")
    assert rode.call(*words).returncode == 0
    names = sorted(path.name for path in out.glob("events.*"))
    assert names[1].startswith("events.out.tfevents.9876543210.008.")
    assert_is_the_log(read_folder(out), lines(out / "log.jsonl"))


def test_tensorboard_reads_the_events_of_a_resumed_run(rode, task, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "run"
    process = start(rode, *train_words(task, out))
    wait_for_step(out, 25, process)
    process.kill()
    process.communicate(timeout=60)
    assert rode.call(*train_words(task, out, "--resume")).returncode == 0
    events = accumulator.EventAccumulator(str(out), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()["scalars"]
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}
    assert_is_the_log(found, lines(out / "log.jsonl"))
