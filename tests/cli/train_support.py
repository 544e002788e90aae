# SPDX-License-Identifier: Apache-2.0
"""A small task, and what the tests of `rode train` and `rode compare` ask of a run's folder."""

import json
import os
import subprocess
import time

# A decoder so small that most of a run is its files.
TASK = """title = "Small"
[model]
kind = "qwen2"
layers = 1
width = 16
heads = 2
kv_heads = 2
mlp_width = 24
vocab_size = 64
[data]
kind = "tiny-lm"
sequence = 16
train_samples = 50
eval_samples = 8
[train]
steps = 120
batch = 8
warmup = 0
eval_interval = 20
checkpoint_interval = 10
routing = "language"
[optimizers.rode]
lr = 1e-2
lr_rho = 1e-2
lr_rest = 3e-3
nesterov = true
radius = "adaptive"
source = "test"
[optimizers.adamw]
lr = 3e-3
lr_rest = 3e-3
source = "test"
"""


def cannot_train(rode):
    return "cannot train" in rode.call("train").stderr or "no lab" in rode.call("tasks").stderr


def train_words(task, out, *extra, optimizer="rode"):
    words = ["train", "--task", task, "--optimizer", optimizer, "--out", out, "--threads", 1]
    return [str(word) for word in [*words, *extra]]


def start(rode, *words, **options):
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    return subprocess.Popen(
        [str(rode.binary), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


def call_here(rode, *words):
    """As rode.call, in the environment of this moment."""
    process = start(rode, *words)
    output, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def checkpoints(out):
    return sorted((out / "checkpoints").glob("step-*.safetensors"))


def what_counts(out):
    """All that must not depend on how often a run was interrupted."""
    files = [out / "model.safetensors", out / "log.jsonl", checkpoints(out)[-1]]
    return {file.name: file.read_bytes() for file in files}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_for_step(out, step, process):
    """Until the log has `step` steps."""
    log = out / "log.jsonl"
    for _ in range(3000):
        if process.poll() is not None:
            return
        if log.exists() and log.read_text().count('"kind":"step"') >= step:
            return
        time.sleep(0.005)
    raise AssertionError("the run does not move")
