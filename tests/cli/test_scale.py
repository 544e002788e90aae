# SPDX-License-Identifier: Apache-2.0
"""The paper's five trainable tasks at `--scale tiny`, on data made here."""

import json
import random

import numpy as np
import pytest
from train_support import lines

pytestmark = pytest.mark.usefixtures("needs_training")

USAGE = 2
WORDS = "the model of a matrix has one radius and its direction turns with every step".split()
STEPS = 24  # [scale.tiny] of the language tasks


def make_tokens(rode, tmp_path, folder, splits=("train", "valid")):
    draw = random.Random(0)
    for split in splits:
        text = tmp_path / f"{split}.txt"
        text.write_text(" ".join(draw.choices(WORDS, k=3000)))
        words = ("--input", text, "--out", folder, "--tokenizer", "bytes", "--split", split)
        done = rode.call("data", "tokens", *words)
        assert done.returncode == 0, done.stderr


def grey_jpeg(value, side=40):
    """A grey square: one coefficient per block, so that the encoder is a few lines."""

    def segment(marker, body):
        return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body

    # Codes of the DC's sizes 0 to 11, four bits each; of the AC only "end of block", the bit 0.
    dc = bytes([0, 0, 0, 12, *[0] * 12, *range(12)])
    ac = bytes([1, *[0] * 15, 0])
    level = (value - 128) * 8  # with a quantizer of 1 throughout
    bits = ""
    for block in range((side // 8) ** 2):
        size = abs(level).bit_length() if block == 0 else 0
        bits += f"{size:04b}"
        if size:
            bits += f"{level if level > 0 else level + (1 << size) - 1:0{size}b}"
        bits += "0"
    bits += "1" * (-len(bits) % 8)
    scan = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")
    frame = bytes([8, 0, side, 0, side, 1, 1, 0x11, 0])
    return b"".join(
        (
            b"\xff\xd8",
            segment(0xDB, bytes([0, *[1] * 64])),
            segment(0xC0, frame),
            segment(0xC4, bytes([0x00]) + dc),
            segment(0xC4, bytes([0x10]) + ac),
            segment(0xDA, bytes([1, 1, 0, 0, 63, 0])),
            scan,
            b"\xff\xd9",
        )
    )


def make_cifar(folder):
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name, count in (("train", 200), ("test", 80)):
        records = draw.integers(0, 256, (count, 2 + 3072), dtype=np.uint8)
        records[:, 0] %= 20  # of the coarse classes
        records[:, 1] = np.arange(count) % 100
        records[:, 2:] //= 8
        records[:, 2:] += (2 * records[:, 1:2]).astype(np.uint8)  # classes differ in brightness
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def make_folders(folder, classes=6):
    for split, count in (("train", 30), ("val", 15)):
        for label in range(classes):  # two more than the scale takes
            place = folder / split / f"class{label}"
            place.mkdir(parents=True)
            for i in range(count):
                (place / f"{i:02}.jpg").write_bytes(grey_jpeg(40 + 40 * label + i % 5))


@pytest.fixture
def make_data(rode, tmp_path):
    data = tmp_path / "data"

    def make(task):
        if task == "qwen2-1.5b":
            make_tokens(rode, tmp_path, data / "fineweb", ["train"])
            make_tokens(rode, tmp_path, data / "fineweb-cache", ["valid"])
        elif task.startswith("resnet50-cifar"):
            make_cifar(data / "cifar-100")
        elif task.startswith("resnet50"):
            make_folders(data / "imagenet")
        else:
            make_tokens(rode, tmp_path, data / "wikitext-103")
        return data

    return make


RUNS = [
    ("gpt2", "muon-normproj"),
    ("qwen2-114m", "rode-retraction-published"),
    ("qwen2-1.5b", "rode-fixed"),
    ("resnet50-cifar100", "rode"),
    ("resnet50-imagenet", "rode-snr"),
]


@pytest.mark.parametrize(("task", "optimizer"), RUNS)
def test_trains_a_tiny_form_of_the_papers_task(rode, tmp_path, make_data, task, optimizer):
    out = tmp_path / "run"
    words = ("--optimizer", optimizer, "--out", out, "--data", make_data(task), "--threads", 2)
    done = rode.call("train", "--task", task, "--scale", "tiny", *words, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    run = json.loads((out / "run.json").read_text())
    assert run["task"]["name"] == task and run["task"]["scale"] == "tiny"
    steps = [line for line in lines(out / "log.jsonl") if line["kind"] == "step"]
    # Images: 90 in batches of 32, the last of 26, three times.
    assert len(steps) == result["steps"] == (9 if "resnet" in task else STEPS)
    evaluations = [line for line in lines(out / "log.jsonl") if line["kind"] == "evaluation"]
    assert evaluations[-1]["loss"] < evaluations[0]["loss"]
    if "resnet" not in task:
        assert run["task"]["model"]["vocab_size"] == 257  # of the data
    if task == "qwen2-1.5b":
        assert run["task"]["data"]["valid_path"] == "fineweb-cache"


def test_compares_at_a_scale_and_says_so(rode, tmp_path, make_data):
    words = ("--optimizers", "adamw,rode", "--seeds", 1, "--threads", 2, "--out", tmp_path / "out")
    data = make_data("qwen2-114m")
    done = rode.call("compare", "--task", "qwen2-114m", "--scale", "tiny", "--data", data, *words)
    assert done.returncode == 0, done.stderr
    assert "scale tiny: 24 steps of 8 samples, warm-up 4, cosine; seed 1" in done.stdout
    assert "4000 steps, scale tiny" in done.stdout  # the title is the task's


def test_a_scale_is_printed_as_the_task_that_it_makes(rode, tmp_path):
    shown = rode.call("tasks", "gpt2", "--scale", "tiny")
    assert shown.returncode == 0 and "[scale" not in shown.stdout
    copy = tmp_path / "copy.toml"
    copy.write_text(shown.stdout)
    again = json.loads(rode.call("tasks", copy, "--json").stdout)
    assert again["model"]["layers"] == 2 and again["train"]["steps"] == STEPS
    whole = tmp_path / "whole.toml"
    whole.write_text(rode.call("tasks", "gpt2").stdout)
    scaled = json.loads(rode.call("tasks", whole, "--scale", "tiny", "--json").stdout)
    assert scaled["model"] == again["model"] and scaled["scale"] == "tiny"


def test_refuses_a_scale_that_a_task_does_not_have(rode):
    wrong = rode.call("tasks", "gpt2", "--scale", "tini")
    assert wrong.returncode == USAGE and "did you mean 'tiny'" in wrong.stderr
    none = rode.call("tasks", "tiny-lm", "--scale", "tiny")
    assert none.returncode == USAGE and "has no [scale.tiny]" in none.stderr
    assert rode.call("tasks", "--scale", "tiny").returncode == USAGE
