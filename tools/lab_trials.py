# SPDX-License-Identifier: Apache-2.0
"""Rate trials of a task, the same number for every optimizer, and the logs that are kept of runs.

  lab_trials.py run --task TASK --grid FILE --log FILE [--jobs N] [--data DIR] [--rode PATH]
  lab_trials.py collect DIR FILE

`run` trains every point of the grid, `rode train --threads 1` each, and writes one JSON line a
trial. Trials that the log has are not made again: those of the same task, length, optimizer, seed and
options. At the end it prints each optimizer's best by final validation loss. The grid is JSON:
`seed`, `steps` (0: the task's) and `optimizers`, by name a list of options.

`collect` writes the evaluations of the runs in a folder of `rode compare`, one JSON line each.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

KEPT = ("status", "steps", "final_loss", "best_loss", "weight_norm")


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_grid(path):
    grid = json.loads(path.read_text())
    counts = {name: len(points) for name, points in grid["optimizers"].items()}
    if len(set(counts.values())) != 1:
        sys.exit(f"{path}: expected as many trials for each optimizer, found {counts}")
    return grid


def task_of(arguments, steps):
    """The task's name, and how long its trials are: steps, or "N epochs" where the data decides."""
    words = [arguments.rode, "tasks", arguments.task, "--json"]
    told = subprocess.run(words, capture_output=True, text=True)
    if told.returncode != 0:
        sys.exit(told.stderr.strip())
    task = json.loads(told.stdout)
    own = task["train"].get("steps") or f"{task['train']['epochs']} epochs"
    return task["name"], steps or own


def key_of(line):
    """What makes two trials the same. Lines of older logs have no `length`: there `steps` is it, but
    of a trial that diverged the step where it did, and such a trial is made again."""
    length = line.get("length", line["steps"] if line["status"] == "finished" else None)
    return json.dumps([line["task"], length, line["optimizer"], line["seed"], line["options"]])


def train(arguments, name, seed, steps, options):
    """One trial; a run that diverged is a result like any other."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        words = ["train", "--task", arguments.task, "--optimizer", name, "--seed", seed]
        words += [
            "--out",
            out,
            "--threads",
            1,
            "--no-tensorboard",
            "--quiet",
            "--keep",
            1,
        ]
        words += ["--steps", steps] if steps else []
        words += ["--data", arguments.data] if arguments.data else []
        for key, value in options.items():
            words += ["--set", f"{key}={value}"]
        done = subprocess.run(
            [arguments.rode, *map(str, words)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        )
        if not (out / "result.json").exists():
            raise RuntimeError(done.stderr.strip())
        result = json.loads((out / "result.json").read_text())
    line = {"optimizer": name, "seed": seed, "options": options}
    return {**line, **{key: result[key] for key in KEPT if key in result}}


def run(arguments):
    grid = read_grid(arguments.grid)
    seed, steps = grid["seed"], grid.get("steps", 0)
    task, length = task_of(arguments, steps)

    def key(name, options):
        return json.dumps([task, length, name, seed, options])

    done = {key_of(line): line for line in read_lines(arguments.log)}
    todo = [
        (name, seed, steps, options)
        for name, points in grid["optimizers"].items()
        for options in points
        if key(name, options) not in done
    ]
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for line in pool.map(lambda trial: train(arguments, *trial), todo):
            line = {"task": task, "length": length, **line}
            done[key_of(line)] = line
            with arguments.log.open("a") as log:
                log.write(json.dumps(line) + "\n")
            print(
                line["optimizer"],
                line["options"],
                line["status"],
                line.get("final_loss"),
            )
    for name, points in grid["optimizers"].items():
        own = [done[key(name, options)] for options in points]
        good = [x for x in own if x["status"] == "finished"]
        best = min(good, key=lambda line: line["final_loss"], default=None)
        print(
            f"{name}: {len(own)} trials, best",
            best and (best["options"], best["final_loss"]),
        )


def collect(arguments):
    with arguments.file.open("w") as out:
        for path in sorted(arguments.folder.glob("*/run.json")):
            told = json.loads(path.read_text())
            for line in read_lines(path.parent / "log.jsonl"):
                if line.pop("kind") != "step":
                    line.pop("matrices", None)
                    who = {"optimizer": told["optimizer"], "seed": told["seed"]}
                    out.write(json.dumps({**who, **line}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run", help="make the trials of a grid")
    command.add_argument("--task", required=True)
    command.add_argument("--grid", required=True, type=pathlib.Path)
    command.add_argument("--log", required=True, type=pathlib.Path)
    command.add_argument("--jobs", type=int, default=1, help="trials at a time, one thread each")
    command.add_argument("--data", help="folder of the datasets")
    command.add_argument("--rode", default="build/bin/rode")
    command.set_defaults(call=run)
    command = commands.add_parser("collect", help="write the evaluations of runs to one file")
    command.add_argument("folder", type=pathlib.Path)
    command.add_argument("file", type=pathlib.Path)
    command.set_defaults(call=collect)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
