# SPDX-License-Identifier: Apache-2.0
"""The 114M decoder's protocol on one GPU: eleven runs in a row, 5400 steps in all.

  lab_h200.py run --rode build/cuda/bin/rode --data DIR --out FILE [--runs NAME ...] [--budget S]
  lab_h200.py check FILE ...

`run` trains task wiki-114m with `rode train` and appends to FILE one JSON line for every
evaluation and every tenth step, and one at the end of a run. DIR holds the shards in `wiki_en`.
A run is named OPTIMIZER:SEED, with @STEP behind it where it pauses there under the schedule of
the whole. No run is begun that would not end within the budget of seconds, judged by the last;
those left out are printed, to be named with --runs the next time. `check` prints the table and
what was to be shown.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

TASK = pathlib.Path(__file__).parents[1] / "src" / "lab" / "task" / "tasks" / "wiki-114m.toml"
RUNS = ["rode-final:1", "rode-final:2"]
RUNS += ["rode-adaptive:1", "rode-nesterov:1", "muon-rms:1", "adamw:1"]
RUNS += [f"rode:{seed}@360" for seed in range(1, 6)]
STEPS = 600
# Of an independent implementation: RODE with reproject=final, seeds 1 to 5.
REFERENCE = statistics.mean([4.203, 4.209, 4.221, 4.198, 4.208])
KEPT = ("status", "final_loss", "best_loss", "weight_norm", "seconds", "units_per_second")
KEPT += ("peak_memory_bytes", "steps", "what")


def parts_of(name: str) -> tuple[str, int, int]:
    match = re.fullmatch(r"([a-z-]+):(\d+)(?:@(\d+))?", name)
    if not match:
        sys.exit(f"'{name}' is no run; expected OPTIMIZER:SEED or OPTIMIZER:SEED@STEP")
    return match[1], int(match[2]), int(match[3] or 0)


def lines_of(folder: pathlib.Path, name: str, status: int) -> list[dict]:
    """What is kept of a run's log: no matrices, a tenth of the steps."""
    out = []
    for text in (folder / "log.jsonl").read_text().splitlines():
        line = json.loads(text)
        line.pop("matrices", None)
        if line["kind"] != "step" or line["step"] % 10 == 9:
            out.append({"run": name, **line})
    last = {"run": name, "kind": "end", "exit_status": status}
    result = folder / "result.json"
    if result.exists():
        found = json.loads(result.read_text())
        last |= {key: found[key] for key in KEPT if key in found}
    else:
        last["status"] = "paused" if status == 0 else "ended early"
    times = [json.loads(text) for text in (folder / "times.jsonl").read_text().splitlines()]
    if times:
        last["training_units_per_second"] = times[-1]["units_per_second"]
    return [*out, last]


def train(arguments: argparse.Namespace, task: pathlib.Path, name: str) -> None:
    optimizer, seed, until = parts_of(name)
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        folder = pathlib.Path(scratch) / "run"
        words = ["train", "--task", task, "--optimizer", optimizer, "--seed", seed]
        words += ["--out", folder, "--data", arguments.data, "--device", arguments.device]
        words += ["--no-tensorboard", "--keep", 1]
        words += ["--until", until] if until else []
        done = subprocess.run([arguments.rode, *map(str, words)], check=False)
        if not (folder / "log.jsonl").exists():
            sys.exit(f"{name} did not begin (status {done.returncode})")
        lines = lines_of(folder, name, done.returncode)
    with arguments.out.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def run(arguments: argparse.Namespace) -> None:
    begin = time.monotonic()
    rate = 0.0  # seconds per step, of the slowest run so far
    left = list(arguments.runs or RUNS)
    with tempfile.TemporaryDirectory() as scratch:
        # Checkpoints at the end alone: one holds a gigabyte.
        task = pathlib.Path(scratch) / "wiki-114m.toml"
        interval, text = "eval_interval = 60\n", TASK.read_text()
        if interval not in text:
            sys.exit(f"{TASK} evaluates in other steps than those to be shown")
        task.write_text(text.replace(interval, f"{interval}checkpoint_interval = {STEPS}\n"))
        while left:
            steps = parts_of(left[0])[2] or STEPS
            start = time.monotonic()
            if start - begin + rate * steps > arguments.budget:
                break
            name = left.pop(0)
            train(arguments, task, name)
            spent = time.monotonic() - start
            rate = max(rate, spent / steps)
            print(f"{name}: {spent:.1f} s", flush=True)
    if left:
        print("left out:", " ".join(left))


def evaluations(lines: list[dict]) -> list[float]:
    return [line["loss"] for line in lines if line["kind"] == "evaluation"]


def verdict(name: str, lines: list[dict]) -> str:
    """'' where nothing was to be shown."""
    optimizer, _, until = parts_of(name)
    losses = evaluations(lines)
    if lines[-1].get("status") == "diverged":
        return "FAILED: diverged"
    reached = max(line["step"] for line in lines if line["kind"] == "evaluation")
    if reached != (until or STEPS) or lines[-1].get("exit_status", 0) != 0:
        return f"FAILED: ended after step {reached}"
    if optimizer == "rode-final":
        off = losses[-1] - REFERENCE
        return f"{'ok' if abs(off) <= 0.02 else 'FAILED'}: {off:+.4f} of {REFERENCE:.4f}"
    if optimizer == "rode" and until:
        worst = max((b - a for a, b in zip(losses, losses[1:], strict=False)), default=0.0)
        return f"{'ok' if worst <= 0.05 else 'FAILED'}: largest rise {worst:+.4f}"
    return ""


def check(arguments: argparse.Namespace) -> None:
    runs: dict[str, list[dict]] = {}
    for path in arguments.files:
        for text in path.read_text().splitlines():
            line = json.loads(text)
            runs.setdefault(line["run"], []).append(line)
    print("| run | steps | validation loss | global norm | tokens/s | shown |\n" + "|---" * 6 + "|")
    for name in [*RUNS, *(n for n in runs if n not in RUNS)]:
        if name not in runs:
            print(f"| {name} | - | - | - | - | missing |")
            continue
        lines = runs[name]
        last = [line for line in lines if line["kind"] == "evaluation"][-1]
        speed = lines[-1].get("training_units_per_second", 0)
        print(
            f"| {name} | {last['step']} | {last['loss']:.4f} | {last['weight_norm']:.1f} "
            f"| {speed:,.0f} | {verdict(name, lines)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    words = commands.add_parser("run")
    words.add_argument("--rode", type=pathlib.Path, required=True)
    words.add_argument("--data", type=pathlib.Path, required=True)
    words.add_argument("--out", type=pathlib.Path, required=True)
    words.add_argument("--runs", nargs="+")
    words.add_argument("--budget", type=float, default=1e9, help="seconds")
    words.add_argument("--device", default="cuda")
    words.add_argument("--scratch", type=pathlib.Path, help="where checkpoints may lie meanwhile")
    words.set_defaults(function=run)
    words = commands.add_parser("check")
    words.add_argument("files", nargs="+", type=pathlib.Path)
    words.set_defaults(function=check)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
