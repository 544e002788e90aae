# SPDX-License-Identifier: Apache-2.0
"""`rode data tokens` and `rode data info`, against a reference of GPT-2's encoding in Python."""

import importlib
import json
import lzma
import os
import random
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest

FAILED, USAGE = 1, 2
END = 1024  # bytes of a shard's header
WHITE_SPACE = {
    *range(0x9, 0xE),
    *(0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000),
    *range(0x2000, 0x200B),
}


@pytest.fixture(autouse=True)
def needs_lab(rode):
    done = rode.call("tasks")
    if "no lab" in done.stderr:
        pytest.skip("this build has no lab")


def kind(c):
    if c == " ":
        return "B"
    if ord(c) in WHITE_SPACE:
        return "S"
    return {"L": "L", "N": "N"}.get(unicodedata.category(c)[0], "O")


def pieces(text):
    """GPT-2's pattern, on a string that spells each character's class."""
    classes = "".join(map(kind, text))
    pattern = re.compile(r"B?L+|B?N+|B?O+|[BS]+(?![LNO])|[BS]+")
    contraction = re.compile(r"'(?:s|t|re|ve|m|ll|d)")
    at, found = 0, []
    while at < len(text):
        match = contraction.match(text, at) or pattern.match(classes, at)
        found.append(text[at : match.end()])
        at = match.end()
    return found


def spelling():
    """The printable character that stands for each byte in the vocabulary's files."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


class Reference:
    """A vocabulary learnt from a text by counting pairs, and encoding by its definition."""

    def __init__(self, text, merges):
        spell = spelling()
        words = {}
        for piece in pieces(text):
            word = tuple(spell[b] for b in piece.encode())
            words[word] = words.get(word, 0) + 1
        self.spell, self.merges = spell, []
        for _ in range(merges):
            counts = {}
            for word, n in words.items():
                for pair in zip(word, word[1:]):
                    counts[pair] = counts.get(pair, 0) + n
            # One merge makes one token, as in GPT-2's files.
            made = set(map("".join, self.merges))
            counts = {pair: n for pair, n in counts.items() if "".join(pair) not in made}
            best = max(counts, key=lambda pair: (counts[pair], pair))
            self.merges.append(best)
            words = {tuple(self.merge(word, best)): n for word, n in words.items()}
        symbols = [*spell.values(), *map("".join, self.merges), "<|endoftext|>"]
        self.encoder = {symbol: i for i, symbol in enumerate(symbols)}

    @staticmethod
    def merge(word, pair):
        out = []
        for symbol in word:
            if out and (out[-1], symbol) == pair:
                out[-1] += symbol
                # A merged symbol does not take part twice in one pass.
                out.append(None)
            else:
                out.append(symbol)
        return [symbol for symbol in out if symbol is not None]

    def encode(self, text):
        tokens = []
        rank = {pair: i for i, pair in enumerate(self.merges)}
        for piece in pieces(text):
            word = [self.spell[b] for b in piece.encode()]
            while len(word) > 1:
                best = min(zip(word, word[1:]), key=lambda p: rank.get(p, len(rank)))
                if best not in rank:
                    break
                word = self.merge(word, best)
            tokens += [self.encoder[symbol] for symbol in word]
        return tokens

    def write(self, folder):
        folder.mkdir()
        (folder / "encoder.json").write_text(json.dumps(self.encoder))
        lines = ["#version: 0.2", *(" ".join(pair) for pair in self.merges)]
        (folder / "vocab.bpe").write_text("\n".join(lines) + "\n", "utf-8")
        return folder


ENGLISH = "It's the cat's 3rd nap, isn't it? They've seen it; we'll see. I'd say 2024 was fine.\n"


def mixed_text(seed, size=4000):
    """Words, runs of spaces, and characters from all over Unicode."""
    draw = random.Random(seed)
    parts = []
    while sum(map(len, parts)) < size:
        choice = draw.random()
        if choice < 0.5:
            parts.append(draw.choice(ENGLISH.split(" ")) + " ")
        elif choice < 0.7:
            parts.append(
                draw.choice([" ", "\n", "\t", "\u00a0", "\u2003", "\r\n"]) * draw.randint(1, 4)
            )
        else:
            code = draw.choice([draw.randrange(0x80, 0x3000), draw.randrange(0x3000, 0x11000)])
            code = 0x1F600 if 0xD800 <= code < 0xE000 else code
            parts.append(chr(code) * draw.randint(1, 3))
    return "".join(parts)


def shard(path):
    return np.fromfile(path, "<u2", offset=END)


def tokens_of(rode, source, out, *more):
    done = rode.call("data", "tokens", "--input", source, "--out", out, *more)
    assert done.returncode == 0, done.stderr
    return shard(Path(out) / "train_000000.bin").tolist()


@pytest.mark.parametrize("seed", range(3))
def test_gpt2_encoding_equals_the_reference(rode, tmp_path, seed):
    reference = Reference(ENGLISH * 3 + mixed_text(99), 120)
    vocabulary = reference.write(tmp_path / "vocab")
    text = mixed_text(seed)
    (tmp_path / "a.txt").write_bytes(text.encode())
    got = tokens_of(rode, tmp_path / "a.txt", tmp_path / "out", "--vocab", vocabulary)
    assert got == [reference.encoder["<|endoftext|>"], *reference.encode(text)]
    assert len(got) < len(text.encode()), "merges had an effect"


def gpt2_vocabulary():
    folder = os.environ.get("RODE_GPT2_VOCAB")
    if not folder:
        pytest.skip("RODE_GPT2_VOCAB does not name the folder of encoder.json and vocab.bpe")
    return Path(folder)


def test_gpt2_encoding_equals_tiktoken(rode, tmp_path):
    vocabulary = gpt2_vocabulary()
    tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is not installed")
    load = importlib.import_module("tiktoken.load")
    peer = tiktoken.Encoding(
        "gpt2-local",
        pat_str=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        mergeable_ranks=load.data_gym_to_mergeable_bpe_ranks(
            str(vocabulary / "vocab.bpe"), str(vocabulary / "encoder.json")
        ),
        special_tokens={"<|endoftext|>": 50256},
    )
    text = "".join(mixed_text(seed, 50_000) for seed in range(5)) + "a" * 5000
    source = os.environ.get("RODE_TEST_TEXT")
    if source:
        text += Path(source).read_text("utf-8")
    (tmp_path / "a.txt").write_bytes(text.encode())
    got = tokens_of(rode, tmp_path / "a.txt", tmp_path / "out", "--vocab", vocabulary)
    assert got[0] == 50256
    assert got[1:] == peer.encode_ordinary(text)


def test_bytes_and_compressed_text(rode, tmp_path):
    text = mixed_text(7).encode() + b"\xff\xfe\x00"
    (tmp_path / "a.txt").write_bytes(text)
    plain = tokens_of(rode, tmp_path / "a.txt", tmp_path / "one", "--tokenizer", "bytes")
    assert plain == [256, *text]
    (tmp_path / "b.txt.xz").write_bytes(lzma.compress(text))
    done = rode.call(
        *("data", "tokens", "--tokenizer", "bytes", "--input", tmp_path / "b.txt.xz"),
        *("--out", tmp_path / "two"),
    )
    if "no libarchive" in done.stderr:
        pytest.skip("this build has no libarchive")
    assert shard(tmp_path / "two" / "train_000000.bin").tolist() == plain


def test_a_damaged_compressed_file_is_refused(rode, tmp_path):
    packed = lzma.compress(b"some text " * 1000)
    (tmp_path / "b.txt.xz").write_bytes(packed[: len(packed) // 2])
    done = rode.call(
        *("data", "tokens", "--tokenizer", "bytes", "--input", tmp_path / "b.txt.xz"),
        *("--out", tmp_path / "out"),
    )
    assert done.returncode == FAILED and "b.txt.xz" in done.stderr
    done = rode.call("data", "info", tmp_path / "out")
    assert done.returncode == FAILED, "half a split is not data"


def test_documents_shards_and_splits(rode, tmp_path):
    (tmp_path / "a.txt").write_text("= One =\nx\n\n= Two =\ny\n")
    (tmp_path / "b.txt").write_text("= Three =\nz\n")
    common = ["--tokenizer", "bytes", "--out", tmp_path / "out", "--documents", "heading", "--json"]
    done = rode.call(
        *("data", "tokens", "--input", tmp_path / "a.txt", tmp_path / "b.txt"),
        *("--shard-tokens", 16, *common),
    )
    report = json.loads(done.stdout)
    assert (report["documents"], report["tokens"], report["shards"]) == (3, 36, 3)
    done = rode.call("data", "tokens", "--input", tmp_path / "b.txt", "--split", "valid", *common)
    assert done.returncode == 0, done.stderr
    info = json.loads(rode.call("data", "info", tmp_path / "out", "--scan", "--json").stdout)
    assert info["tokenizer"] == "bytes" and info["vocab_size"] == 257
    assert info["splits"]["train"] == {"shards": 3, "tokens": 36, "largest_token": 256}
    assert info["splits"]["valid"] == {"shards": 1, "tokens": 13, "largest_token": 256}
    joined = np.concatenate([shard(p) for p in sorted((tmp_path / "out").glob("train_*.bin"))])
    assert np.flatnonzero(joined == 256).tolist() == [0, 12, 23]
    again = rode.call("data", "tokens", "--input", tmp_path / "b.txt", *common)
    assert again.returncode == FAILED and "--overwrite" in again.stderr
    again = rode.call("data", "tokens", "--input", tmp_path / "b.txt", "--overwrite", *common)
    assert again.returncode == 0
    assert len(list((tmp_path / "out").glob("train_*.bin"))) == 1


def test_info_refuses_what_is_not_whole(rode, tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    out = tmp_path / "out"
    tokens_of(rode, tmp_path / "a.txt", out, "--tokenizer", "bytes")
    file = out / "train_000000.bin"
    good = file.read_bytes()
    for bad, word in (
        (good[:-1], "11 bytes follow"),
        (b"\0" * 4 + good[4:], "magic number"),
        (good[:-2] + b"\x01\x09", "give checksum"),
    ):
        file.write_bytes(bad)
        done = rode.call("data", "info", out, "--scan")
        assert done.returncode == FAILED and word in done.stderr, done.stderr
        assert "rode data tokens" in done.stderr
    # A folder of an older version: the numbers are checked, and a note tells what is not.
    description = json.loads((out / "tokens.json").read_text())
    del description["checksum"], description["splits"]["train"]["checksums"]
    (out / "tokens.json").write_text(json.dumps(description))
    done = rode.call("data", "info", out, "--scan")
    assert done.returncode == FAILED and "token 2305" in done.stderr, done.stderr
    assert "have no checksums" in done.stderr
    file.write_bytes(good)
    (out / "tokens.json").unlink()
    done = rode.call("data", "info", out)
    assert done.returncode == 0 and "unknown" in done.stdout


@pytest.mark.parametrize(
    "arguments,code,word",
    [
        (["tokens", "--input", "a.txt", "--out", "o"], USAGE, "--vocab"),
        (["tokens", "--input", "a.txt", "--out", "o", "--tokenizer", "byte"], USAGE, "'bytes'"),
        (["tokens", "--input", "a.txt", "--out", "o", "--tokenizer", "bytes"], FAILED, "a.txt"),
        (["tokens", "--input", "a.txt", "--out", "o", "--vocab", "v"], FAILED, "encoder.json"),
        (["info", "nowhere"], FAILED, "nowhere"),
        (["inf", "nowhere"], USAGE, "'info'"),
    ],
)
def test_mistakes_are_named(rode, tmp_path, monkeypatch, arguments, code, word):
    monkeypatch.chdir(tmp_path)
    done = rode.call("data", *arguments)
    assert done.returncode == code and word in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_wrong_split_and_rule(rode, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    for flag, value in (("--split", "dev"), ("--documents", "lines")):
        done = rode.call(
            *("data", "tokens", "--tokenizer", "bytes", "--input", tmp_path / "a.txt"),
            *("--out", tmp_path / "o", flag, value),
        )
        assert done.returncode == USAGE and value in done.stderr


def test_a_vocabulary_beyond_16_bits_has_the_second_layout(rode, tmp_path):
    spell = list(spelling().values())
    # Every pair of bytes is a merge: 65,536 of them above the bytes.
    merges = [(a, b) for a in spell for b in spell]
    names = [*spell, *map("".join, merges), "<|endoftext|>"]
    vocabulary = tmp_path / "vocabulary"
    vocabulary.mkdir()
    encoder = {name: i for i, name in enumerate(names)}
    (vocabulary / "encoder.json").write_text(json.dumps(encoder))
    lines = "\n".join(f"{a} {b}" for a, b in merges)
    (vocabulary / "vocab.bpe").write_text(f"#version: 0.2\n{lines}\n")
    (tmp_path / "text.txt").write_text("zz")
    words = (
        "--input",
        tmp_path / "text.txt",
        "--out",
        tmp_path / "out",
        "--vocab",
        vocabulary,
    )
    done = rode.call("data", "tokens", *words)
    assert done.returncode == 0, done.stderr
    data = (tmp_path / "out" / "train_000000.bin").read_bytes()
    assert list(np.frombuffer(data, np.int32, 3)) == [20240801, 7, 2]
    z = spelling()[ord("z")]
    assert list(np.frombuffer(data, np.uint32, offset=END)) == [
        len(names) - 1,
        encoder[z + z],
    ]
    assert encoder[z + z] > 0 and len(names) > 65536
    assert rode.call("data", "info", tmp_path / "out", "--scan").returncode == 0
