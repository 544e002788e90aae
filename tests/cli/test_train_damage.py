# SPDX-License-Identifier: Apache-2.0
"""`rode train` on damaged files: checkpoints with flipped bits, shards that are missing or wrong."""

import random
import shutil
import struct

from safetensors.torch import load_file
from train_support import (
    TASK,
    checkpoints,
    train_words,
    what_counts,
)

FAILED, USAGE = 1, 2
SEED = 20240520


def test_flipped_bits_of_the_newest_checkpoint_end_in_the_one_before(rode, task, tmp_path):
    """Two of the header, two of the data; tests/lab has 200 of them without a process each."""
    task.write_text(TASK.replace("steps = 120", "steps = 24"))
    whole, half, out = (tmp_path / name for name in ("whole", "half", "run"))
    assert rode.call(*train_words(task, whole)).returncode == 0
    assert rode.call(*train_words(task, half, "--until", 15)).returncode == 0
    good = checkpoints(half)[-1].read_bytes()
    header = 8 + struct.unpack("<Q", good[:8])[0]
    draw = random.Random(SEED)
    print("seed", SEED)
    for low, high in ((0, header), (8, header), (header, len(good)), (header, len(good))):
        shutil.copytree(half, out)
        damaged = bytearray(good)
        place = draw.randrange(low, high)
        damaged[place] ^= 1 << draw.randrange(8)
        newest = checkpoints(out)[-1]
        newest.write_bytes(damaged)
        resumed = rode.call(*train_words(task, out, "--resume"))
        assert resumed.returncode == 0, (place, resumed.stderr)
        assert "using the checkpoint before it" in resumed.stderr, (place, resumed.stderr)
        assert what_counts(out) == what_counts(whole)
        assert newest.with_name(newest.name + ".bad").exists()
        shutil.rmtree(out)


def test_missing_and_damaged_shards_are_named(rode, task, tmp_path):
    data, out = tmp_path / "data", tmp_path / "run"
    tokens = TASK.replace('kind = "tiny-lm"', 'kind = "tokens"\npath = "text"')
    task.write_text(tokens.replace("train_samples = 50\n", ""))
    words = train_words(task, out, "--data", data)
    done = rode.call(*words)
    assert done.returncode == FAILED and "text" in done.stderr
    text = tmp_path / "text.txt"
    text.write_text("some words " * 400)
    for split in ("train", "valid"):
        arguments = ["--input", text, "--out", data / "text", "--tokenizer", "bytes"]
        made = rode.call("data", "tokens", *arguments, "--split", split)
        assert made.returncode == 0, made.stderr
    done = rode.call(*words)
    assert done.returncode == FAILED and "257" in done.stderr and "vocab" in done.stderr
    task.write_text(task.read_text().replace("vocab_size = 64", "vocab_size = 257"))
    shard = data / "text" / "train_000000.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-7])
    done = rode.call(*words)
    assert done.returncode == FAILED and shard.name in done.stderr
    assert not out.exists()
    shard.unlink()
    shard.symlink_to(shard)  # is there, and cannot be opened by anyone
    done = rode.call(*words)
    assert done.returncode == FAILED and shard.name in done.stderr
    assert not out.exists()
    shard.unlink()
    damaged = bytearray(whole)
    damaged[1500] ^= 1  # of a token: the number stays one of the vocabulary
    shard.write_bytes(damaged)
    done = rode.call(*words)
    assert done.returncode == FAILED and shard.name in done.stderr and "checksum" in done.stderr
    scanned = rode.call("data", "info", data / "text", "--scan")
    assert scanned.returncode == FAILED and shard.name in scanned.stderr
    assert not out.exists()
    shard.write_bytes(whole)
    done = rode.call(*words)
    assert done.returncode == 0 and "checksum" not in done.stderr, done.stderr


def test_a_token_beyond_the_vocabulary_is_named_when_it_is_read(rode, task, tmp_path):
    """Shards from elsewhere have no description that could be compared before."""
    data, out = tmp_path / "data", tmp_path / "run"
    tokens = TASK.replace('kind = "tiny-lm"', 'kind = "tokens"\npath = "text"')
    task.write_text(tokens.replace("train_samples = 50\n", ""))
    text = tmp_path / "text.txt"
    for split, letters in (("train", "!" * 5000 + "z" * 100), ("valid", "!" * 5000)):
        text.write_text(letters)
        arguments = ["--input", text, "--out", data / "text", "--tokenizer", "bytes"]
        assert rode.call("data", "tokens", *arguments, "--split", split).returncode == 0
        # The end of text, 256, stands before each document.
        shard = data / "text" / f"{split}_000000.bin"
        content = bytearray(shard.read_bytes())
        content[1024:1026] = struct.pack("<H", 33)
        shard.write_bytes(content)
    (data / "text" / "tokens.json").unlink()
    done = rode.call(*train_words(task, out, "--data", data))
    assert done.returncode == FAILED, done.stderr
    for word in ("train_000000.bin", "122", "vocab"):
        assert word in done.stderr, done.stderr
    assert not list(out.rglob("*.tmp")) and not (out / "result.json").exists()
    for file in checkpoints(out):
        assert load_file(file)
