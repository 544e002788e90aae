# SPDX-License-Identifier: Apache-2.0
"""`rode data tokens` with damaged input and with more input than memory: refused, or bounded."""

import gzip
import lzma
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from test_data import (
    ENGLISH,
    Reference,
    gpt2_vocabulary,
    mixed_text,
    needs_lab,
    shard,
    tokens_of,
)

FAILED = 1
MEGABYTE = 1 << 20
__all__ = ["needs_lab"]  # the fixture, for this file too


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    reference = Reference(ENGLISH * 3 + mixed_text(99), 120)
    return reference.write(tmp_path_factory.mktemp("gpt2") / "vocab")


def tree(folder):
    return {p: p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def refused(rode, tmp_path, *words):
    """Fails with a message, and leaves every file as it was."""
    before = tree(tmp_path)
    done = rode.call("data", "tokens", *words)
    assert done.returncode == FAILED, (done.stdout, done.stderr)
    assert tree(tmp_path) == before, "something was left behind or changed"
    return done.stderr


def damaged_merges(text):
    lines = text.splitlines(keepends=True)
    swapped = [*lines[:5], lines[6], lines[5], *lines[7:]]
    return {
        "cut in half": text[: len(text) // 2],
        "cut at a line": "".join(lines[: len(lines) // 2]),
        "empty": "",
        "swapped": "".join(swapped),
        "one missing": "".join(lines[:7] + lines[8:]),
        "one twice": "".join([*lines[:8], lines[7], *lines[8:]]),
    }


def check_damage(rode, tmp_path, folder, expected):
    (tmp_path / "a.txt").write_text(ENGLISH)
    good = (folder / "vocab.bpe").read_text("utf-8")
    for kind, text in damaged_merges(good).items():
        bad = tmp_path / "bad"
        shutil.copytree(folder, bad, dirs_exist_ok=True)
        (bad / "vocab.bpe").chmod(0o644)
        (bad / "vocab.bpe").write_text(text, "utf-8")
        words = [
            "--input",
            tmp_path / "a.txt",
            "--out",
            tmp_path / "out",
            "--vocab",
            bad,
        ]
        message = refused(rode, tmp_path, *words)
        assert "vocab.bpe" in message and expected in message, (kind, message)


def test_damaged_merges_are_refused(rode, tmp_path, vocabulary):
    check_damage(rode, tmp_path, vocabulary, "merge")


def test_damaged_merges_of_gpt2_itself_are_refused(rode, tmp_path):
    folder = gpt2_vocabulary()
    check_damage(rode, tmp_path, folder, "merge")
    words = [
        "--input",
        tmp_path / "a.txt",
        "--out",
        tmp_path / "out",
        "--vocab",
        folder,
    ]
    done = rode.call("data", "tokens", *words)
    assert done.returncode == 0 and done.stderr == "", "GPT-2's own files need no note"


def test_a_vocabulary_that_is_not_gpt2s_is_named(rode, tmp_path, vocabulary):
    (tmp_path / "a.txt").write_text(ENGLISH)
    words = [
        "--input",
        tmp_path / "a.txt",
        "--out",
        tmp_path / "out",
        "--vocab",
        vocabulary,
    ]
    done = rode.call("data", "tokens", *words)
    assert done.returncode == 0, done.stderr
    notes = done.stderr.splitlines()
    assert [line.split(" is not")[0] for line in notes] == [
        "rode: note: encoder.json",
        "rode: note: vocab.bpe",
    ]
    assert "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5" in notes[1]


def test_text_without_a_byte_is_refused(rode, tmp_path):
    for name, packed in (("e.txt", b""), ("e.txt.xz", lzma.compress(b""))):
        (tmp_path / name).write_bytes(packed)
        words = [
            "--tokenizer",
            "bytes",
            "--input",
            tmp_path / name,
            "--out",
            tmp_path / "a" / "b",
        ]
        assert "no tokens" in refused(rode, tmp_path, *words)
    (tmp_path / "full.txt").write_text("x")
    words = [
        "--tokenizer",
        "bytes",
        "--input",
        tmp_path / "e.txt",
        tmp_path / "full.txt",
    ]
    done = rode.call("data", "tokens", *words, "--out", tmp_path / "out")
    assert done.returncode == 0 and "e.txt' is empty" in done.stderr


@pytest.mark.parametrize(
    "name,kind",
    [("t.gz", "gzip"), ("t.xz", "xz"), ("t.zst", "zstd"), ("t.bz2", "bzip2")],
)
def test_a_name_that_is_not_what_the_file_is_is_refused(rode, tmp_path, name, kind):
    words = [
        "--tokenizer",
        "bytes",
        "--input",
        tmp_path / name,
        "--out",
        tmp_path / "out",
    ]
    for content in (
        b"plain text\n" * 100,
        b"",
        lzma.compress(b"x" * 100, lzma.FORMAT_ALONE),
    ):
        (tmp_path / name).write_bytes(content)
        message = refused(rode, tmp_path, *words)
        assert f"is not {kind} data" in message and name in message


def test_a_failure_leaves_the_folder_as_it_was(rode, tmp_path):
    packed = gzip.compress(random.Random(1).randbytes(1 << 16))
    (tmp_path / "bad.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "a.txt").write_text("hello")
    common = [
        "--tokenizer",
        "bytes",
        "--shard-tokens",
        1000,
        "--input",
        tmp_path / "bad.gz",
    ]
    refused(rode, tmp_path, *common, "--out", tmp_path / "new" / "deep")
    out = tmp_path / "out"
    tokens_of(rode, tmp_path / "a.txt", out, "--tokenizer", "bytes")
    refused(rode, tmp_path, *common, "--out", out, "--overwrite")
    refused(rode, tmp_path, *common, "--out", out, "--split", "valid")
    assert shard(out / "train_000000.bin").tolist() == [256, *b"hello"]


def test_a_stop_leaves_nothing(rode, tmp_path):
    (tmp_path / "a.txt").write_bytes(sentences(96 * MEGABYTE))
    out = tmp_path / "out"
    words = ["--tokenizer", "bytes", "--input", tmp_path / "a.txt", "--out", out]
    with subprocess.Popen(
        [str(rode.binary), "data", "tokens", *map(str, words)],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not out.exists() and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        message = process.communicate(timeout=60)[1]
    assert process.returncode == FAILED and "stopped" in message, message
    assert not out.exists()


# A child's figure begins with the size of the process that starts it: a small one is needed.
MEASURE = """import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"""


def peak_bytes(rode, *words):
    """The largest resident size of a run."""
    command = [sys.executable, "-c", MEASURE, rode.binary, "data", "tokens", *words]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout) * 1024


def sentences(size):
    draw = random.Random(3)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 9))) for _ in range(5000)]
    text = " ".join(draw.choices(words, k=size // 10))
    return (text * (size // len(text) + 1))[:size].encode()


# Each with the size at which keeping the whole of it would exceed the limit several times.
LARGE = {
    "bytes": (["--tokenizer", "bytes"], "a.txt", 48, sentences),
    "one line": (
        ["--tokenizer", "bytes", "--documents", "blank"],
        "a.txt",
        48,
        sentences,
    ),
    "xz": (
        ["--tokenizer", "bytes"],
        "a.txt.xz",
        48,
        lambda n: lzma.compress(bytes(n), preset=0),
    ),
    "gpt2": ([], "a.txt", 24, sentences),
    "one word": ([], "a.txt", 8, lambda n: b"a" * n),
    "spaces": ([], "a.txt", 8, lambda n: b"\n" * n),
}


@pytest.mark.parametrize("kind", LARGE)
def test_memory_does_not_grow_with_the_text(rode, tmp_path, vocabulary, kind):
    flags, name, size, make = LARGE[kind]
    flags = [*flags, "--vocab", vocabulary]
    (tmp_path / "tiny.txt").write_text("tiny")
    least = peak_bytes(rode, "--input", tmp_path / "tiny.txt", "--out", tmp_path / "tiny", *flags)
    (tmp_path / name).write_bytes(make(size * MEGABYTE))
    peak = peak_bytes(rode, "--input", tmp_path / name, "--out", tmp_path / "out", *flags)
    assert peak - least < 48 * MEGABYTE, f"{(peak - least) / MEGABYTE:.0f} MB more"
