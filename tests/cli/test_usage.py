# SPDX-License-Identifier: Apache-2.0
"""What every subcommand makes of its words: numbers, repeated options, words it does not know."""

import pytest
from train_support import train_words

USAGE = 2

STEP = ["step", "--optimizer", "sgd", "--in", "i", "--out", "o"]
BENCH = ["bench", "step", "--shapes", "4x4", "--optimizer", "sgd"]
TRAIN = ["train", "--task", "tiny-lm", "--optimizer", "rode"]
COMPARE = ["compare", "--task", "tiny-lm", "--optimizers", "rode"]
TOKENS = ["data", "tokens", "--tokenizer", "bytes", "--input", "i", "--out", "o"]
NUMBERS = [
    *((STEP, flag) for flag in ("--steps", "--threads", "--warmup", "--total")),
    *((BENCH, flag) for flag in ("--threads", "--repeat", "--warmup")),
    *((TRAIN, flag) for flag in ("--seed", "--steps", "--until", "--threads", "--keep")),
    *((TRAIN, flag) for flag in ("--log-interval", "--ranks", "--timeout")),
    *((COMPARE, flag) for flag in ("--seeds", "--steps", "--jobs", "--threads")),
    (TOKENS, "--shard-tokens"),
]


def usage_error(rode, *words):
    done = rode.call(*words)
    if "cannot train" in done.stderr or "no lab" in done.stderr:
        pytest.skip("this build has no such command")
    assert done.returncode == USAGE, (words, done.stdout, done.stderr)
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("words,flag", NUMBERS, ids=lambda v: v if isinstance(v, str) else v[0])
def test_a_number_out_of_range_is_refused_by_name(rode, tmp_path, monkeypatch, words, flag):
    monkeypatch.chdir(tmp_path)
    values = ["-1", "18446744073709551616"]
    if flag == "--seed":
        values += ["1.5", "many", "+3", " 3", ""]
    for value in values:
        message = usage_error(rode, *words, flag, value)
        assert flag in message and "expected a whole number" in message, message
        assert f"got '{value}'" in message, message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [STEP, BENCH, TRAIN], ids=lambda v: v[0])
def test_an_option_that_is_set_twice_is_refused(rode, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    settings = ["--set", "lr=0.1", "--set", "momentum=0.9", "--set", "lr=0.2"]
    message = usage_error(rode, *words, *settings)
    assert "'lr' twice" in message and "'0.1'" in message and "'0.2'" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words,word,near",
    [
        (["stpe", "--help"], "stpe", "step"),
        (["--help", "stpe"], "stpe", "step"),
        (["stpe", "--version"], "stpe", "step"),
        (["data", "tokns", "--help"], "tokns", "tokens"),
        (["bench", "stp", "--help"], "stp", "step"),
        (["step", "--optimiser", "x", "--help"], "--optimiser", "--optimizer"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else v,
)
def test_help_does_not_hide_an_unknown_word(rode, words, word, near):
    message = usage_error(rode, *words)
    assert f"'{word}'" in message and f"did you mean '{near}'" in message, message


@pytest.mark.parametrize(
    "words", [["--help"], ["step", "--help"], ["data", "--help"]], ids=" ".join
)
def test_help_alone_is_help(rode, words):
    done = rode.call(*words)
    assert done.returncode == 0 and done.stderr == ""
    assert "Usage" in done.stdout or "no lab" in done.stdout


def test_an_optimizer_of_a_task_cannot_lead_out_of_the_folder(
    rode, needs_training, task, tmp_path, monkeypatch
):
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    text = task.read_text().replace(
        "[optimizers.rode]", '[optimizers."../../../esc"]\noptimizer = "rode"'
    )
    task.write_text(text)
    for words in (
        ["train", "--task", task, "--optimizer", "../../../esc", "--steps", 1],
        [
            "compare",
            "--task",
            task,
            "--optimizers",
            "../../../esc",
            "--steps",
            1,
            "--seeds",
            1,
        ],
    ):
        done = rode.call(*words)
        assert done.returncode == 1 and "../../../esc" in done.stderr, done.stderr
        assert "letters (a-z, A-Z), digits" in done.stderr
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "b", task.name]


def test_a_model_beyond_the_memory_is_refused_with_both_figures(
    rode, needs_training, task, tmp_path
):
    # One matrix larger than any memory, so that nothing is filled where the check is missing.
    large = {"width = 16": "width = 131072", "mlp_width = 24": "mlp_width = 1048576"}
    text = task.read_text()
    for old, new in large.items():
        text = text.replace(old, new)
    task.write_text(text)
    out = tmp_path / "run"
    done = rode.call(*train_words(task, out, "--device", "cpu"))
    assert done.returncode == USAGE, done.stderr
    assert len(done.stderr.splitlines()) == 2, "one line, and the hint"
    for word in ("parameters", "needs at least", "this machine has", "GB"):
        assert word in done.stderr, done.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("optimizers",),
        ("step",),
        ("bench", "step"),
        ("bench", "systems"),
        ("data", "tokens"),
        ("data", "info"),
        ("data", "get"),
        ("tasks",),
        ("train",),
        ("compare",),
        ("theory",),
    ],
    ids=" ".join,
)
def test_every_help_has_an_example(rode, words):
    shown = rode.call(*words, "--help")
    if "not in this build" in shown.stdout:
        pytest.skip("not in this build")
    assert shown.returncode == 0
    assert "Example" in shown.stdout and f"rode {' '.join(words)}" in shown.stdout
