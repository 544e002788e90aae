#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stands in for the program rode in tests of the sweep: one task, and runs whose losses are a formula
of their rates. FAKE_SECONDS makes a run last; FAKE_TASK is a file with the task as JSON."""

import json
import math
import os
import pathlib
import sys
import time

TASK = {
    "name": "fake",
    "train": {"steps": 100},
    "optimizers": [{"name": "rode"}, {"name": "adamw"}, {"name": "bare"}],
    "sweep": {
        "trials": 14,
        "steps": 40,
        "select": "final-validation-loss",
        "spaces": {
            "rode": {"lr": [1e-4, 1e-1], "lr_rho": [1e-5, 1e-2], "momentum": 0.9},
            "adamw": {"lr": [1e-4, 1e-1], "lr_rest": "lr"},
        },
    },
}
TEXT = """title = "fake"

[optimizers.rode]
lr = 0.5
lr_rho = 0.5
source = "before"

[optimizers.adamw]
lr = 0.5
source = "before"

[sweep]
trials = 14
"""


def tasks(words):
    if words[0] not in ("fake", "fake.toml") and not pathlib.Path(words[0]).exists():
        sys.exit("rode: error: [task] unknown task")
    if "--json" in words:
        told = os.environ.get("FAKE_TASK")
        print(pathlib.Path(told).read_text() if told else json.dumps(TASK))
    else:
        print(TEXT, end="")


def train(words):
    given = {}
    settings = {}
    for key, value in zip(words, [*words[1:], ""], strict=True):
        if key == "--set":
            name, _, text = value.partition("=")
            settings[name] = text
        elif key.startswith("--"):
            given[key] = value
    if "wrong" in given.get("--optimizer", ""):
        sys.exit("rode: error: [fake] this optimizer does not run; choose another")
    out = pathlib.Path(given["--out"])
    (out / "checkpoints").mkdir(parents=True, exist_ok=True)
    (out / "run.json").write_text(json.dumps({"words": words}))
    time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
    steps = int(given["--steps"])
    loss = 3 + sum(math.log10(float(v) / 3e-3) ** 2 for k, v in settings.items() if k[:2] == "lr")
    # Falls, and rises at the end: final, best and mean differ.
    losses = [loss + abs(i - 0.8 * steps) / steps for i in range(steps)]
    lines = [{"kind": "step", "step": i, "loss": v} for i, v in enumerate(losses)]
    (out / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (out / "model.safetensors").write_text("large")
    diverged = float(settings.get("lr", 0)) > 5e-2
    result = {"status": "diverged" if diverged else "finished", "steps": steps, "seconds": 1.0}
    result.update({"final_loss": losses[-1], "best_loss": min(losses)})
    temporary = out / "result.tmp"
    temporary.write_text(json.dumps(result))
    temporary.rename(out / "result.json")
    sys.exit("rode: error: diverged" if diverged else 0)


PRESETS = {
    "sweep": {"trials": 4, "steps": 8},
    "optimizers": {
        "adamw": {"search": {"lr": [1e-6, 1e-4]}, "same_rate": True},
        "rode": {"search": {"lr": [1e-6, 1e-4], "lr_rho": [1e-6, 1e-4]}, "same_rate": False},
    },
}


def finetune(words):
    """As `rode finetune`: a run that diverged ends with an error; null where nothing was finite."""
    if "--presets" in words:
        print(json.dumps(PRESETS))
        return
    given = {key: value for key, value in zip(words, words[1:]) if key.startswith("--")}
    out = pathlib.Path(given["--out"])
    out.mkdir(parents=True, exist_ok=True)
    (out / "run.json").write_text(json.dumps({"words": words}))
    number = int(out.name.removeprefix("trial-"))
    loss = None if number == 2 else 0.5 + number
    status = "diverged" if number == 1 else "finished"
    result = {"status": status, "steps": 8, "best_validation_loss": loss, "best_step": 4}
    (out / "result.json").write_text(json.dumps(result))
    sys.exit("rode: error: [train] not finite" if status == "diverged" else 0)


if __name__ == "__main__":
    {"tasks": tasks, "train": train, "finetune": finetune}[sys.argv[1]](sys.argv[2:])
