#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Old and new program in turn, A B A B: steps on CUDA, on the CPU, and through Python.

    bench/ab_step.py OLD NEW --out FILE [--rounds 5] [--parts cuda,cpu,python] [--repeat 50]
                     [--python OLD_PATH NEW_PATH]

OLD and NEW are `rode` programs. The part `python` runs bench/python_overhead.py with this
interpreter; OLD_PATH and NEW_PATH are folders with the two packages (`pip install --target`). A row
is judged by the ratio of the medians over the rounds, new / old. Beside it stands the ratio of the
fastest rounds: where the machine has two speeds, a median can fall on either. FILE is JSON, written
after every round; rounds are added to those that it holds already, so a run may be split. Beside it,
FILE with the suffix .txt has the same as a table; --rounds 0 only writes both again.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# RODE with the options of the paper's rates, whatever the defaults of either program are.
RODE = ("rode", "radius=learned", "nesterov=false", "reproject=guarded")
CUDA_ROWS = [
    ("qwen2-114m", *RODE),
    ("gpt2", *RODE),
    ("resnet50", *RODE),
    ("qwen2-1.5b", *RODE),
    ("qwen2-1.5b", *RODE[:3], "reproject=final"),
    ("qwen2-114m", "muon-rms"),
    ("qwen2-1.5b", "muon-rms"),
]
FOUR, INT8, FP8 = "coefficients=four", "state_dtype=int8", "ns_dtype=fp8"
NEW_ROWS = [
    *((shapes, *RODE, FOUR) for shapes in ("qwen2-114m", "gpt2", "resnet50", "qwen2-1.5b")),
    ("qwen2-114m", *RODE, FOUR, INT8),
    ("qwen2-1.5b", *RODE, FOUR, INT8),
    ("qwen2-114m", *RODE, FOUR, FP8),
    ("qwen2-1.5b", *RODE, FOUR, FP8),
    ("qwen2-1.5b", *RODE, FOUR, FP8, INT8),
    ("qwen2-1.5b", *RODE, FP8),
    ("qwen2-114m", "muon-rms", FOUR),
    ("qwen2-1.5b", "muon-rms", FOUR),
    ("qwen2-114m", "rode"),
    ("qwen2-1.5b", "rode"),
    ("qwen2-114m", *RODE, "--phases"),
    ("qwen2-1.5b", *RODE, "--phases"),
    ("qwen2-114m", *RODE, "--dtype=bf16"),
    ("qwen2-1.5b", *RODE, FOUR, FP8, "--dtype=bf16"),
    ("qwen2-114m", *RODE, "--products=tensor-cores"),
    ("qwen2-114m", *RODE, FOUR, "--products=tensor-cores"),
]
# Shapes, optimizer, threads. One thread: what a step computes. All cores: how it is shared out.
ONE_THREAD = ("rode", "muon-rms", "mars-m", "soap", "adamw", "ademamix", "sgd", "adafactor")
CPU_ROWS = [("512x512x4,1024x256x4", optimizer, 1) for optimizer in ONE_THREAD]
CPU_ROWS += [("qwen2-114m", "rode", 0), ("qwen2-114m", "adamw", 0)]


def output_of(command: list, environment: dict | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    return done.stdout


def name_of(row: tuple) -> str:
    return " ".join(row).replace("--", "")


def chosen_rows(rows: list, part_of_name: str) -> list:
    return [row for row in rows if part_of_name in name_of(row)]


def cuda_rows(program: str, rows: list, repeat: int) -> dict[str, float]:
    found = {}
    for row in rows:
        shapes, optimizer, *options = row
        command = [program, "bench", "step", "--backend", "cuda", "--json", "--shapes", shapes]
        command += ["--optimizer", optimizer, "--repeat", repeat, "--warmup", 5]
        for option in options:
            command += [option] if option.startswith("--") else ["--set", option]
        name = name_of(row)
        try:
            found["CUDA, ms: " + name] = json.loads(output_of(command))["median_ms"]
        except subprocess.CalledProcessError as failed:  # printed by the program; the others go on
            print(f"left out: {name}: exit code {failed.returncode}", file=sys.stderr)
    return found


def cpu_rows(program: str) -> dict[str, float]:
    rows = {}
    for shapes, optimizer, threads in CPU_ROWS:
        command = [program, "bench", "step", "--json", "--shapes", shapes]
        command += ["--optimizer", optimizer, "--threads", threads, "--warmup", 1]
        command += ["--repeat", 12 if threads == 1 else 3]
        for option in RODE[1:] if optimizer == "rode" else ():
            command += ["--set", option]
        # `min_ms`: what disturbs a step on the host only makes it longer.
        took = json.loads(output_of(command))["min_ms"]
        who = "one thread" if threads == 1 else "all cores"
        rows[f"CPU, ms, {who}: {shapes} {optimizer}"] = took
    return rows


def python_rows(path: str) -> dict[str, float]:
    script, report = ROOT / "bench/python_overhead.py", ROOT / "build/ab_python.json"
    report.parent.mkdir(exist_ok=True)
    output_of([sys.executable, script, "--out", report], {"PYTHONPATH": path})
    rows = {}
    for row in json.loads(report.read_text())["rows"]:
        rows[f"Python, us over the engine: {row['step']}"] = row["python_us"] - row["engine_us"]
        rows[f"Python, us, whole step: {row['step']}"] = row["python_us"]
    return rows


def load(path: pathlib.Path) -> dict:
    if path.exists():
        return json.loads(path.read_text())
    return {"rows": {}}


def add_round(report: dict, measure, old: str, new: str) -> None:
    for side, subject in (("old", old), ("new", new)):
        for name, value in measure(subject).items():
            row = report["rows"].setdefault(name, {"old": [], "new": []})
            row[side].append(value)


def judge(report: dict) -> None:
    """Adds the ratios where both sides have the row."""
    for row in report["rows"].values():
        if row["old"] and row["new"]:
            row["ratio"] = statistics.median(row["new"]) / statistics.median(row["old"])
            row["ratio_of_fastest"] = min(row["new"]) / min(row["old"])


def as_text(report: dict) -> str:
    lines = [f"# {report['title']}", ""]
    for name, row in report["rows"].items():
        sides = " | ".join(
            side + "".join(f" {value:.3f}" for value in row[side])
            for side in ("old", "new")
            if row[side]
        )
        judged = ""
        if "ratio" in row:
            judged = f" | ratio of medians {row['ratio']:.4f}"
            judged += f", of the fastest {row['ratio_of_fastest']:.4f}"
        lines.append(f"{name:<56} {sides}{judged}")
    return "\n".join(lines) + "\n"


def write(report: dict, path: pathlib.Path) -> None:
    judge(report)
    path.write_text(json.dumps(report, indent=1) + "\n")
    path.with_suffix(".txt").write_text(as_text(report))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="the program before")
    parser.add_argument("new", help="the program after")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default="cuda,cpu", help="of cuda, cpu, python")
    parser.add_argument("--python", nargs=2, metavar=("OLD_PATH", "NEW_PATH"))
    parser.add_argument("--repeat", type=int, default=50, help="steps per row on CUDA, default 50")
    parser.add_argument(
        "--new-rounds", type=int, default=3, help="of the CUDA rows that only NEW has, default 3"
    )
    parser.add_argument("--only", default="", help="CUDA rows whose name contains this")
    parser.add_argument("--title", help="of the table; default that of FILE")
    args = parser.parse_args()
    # Row by row on CUDA, since the clock of a GPU falls as it warms up.
    parts = {
        "cuda": [
            (lambda program, row=row: cuda_rows(program, [row], args.repeat), args.old, args.new)
            for row in chosen_rows(CUDA_ROWS, args.only)
        ],
        "cpu": [(cpu_rows, args.old, args.new)],
        "python": [(python_rows, *(args.python or (None, None)))],
    }
    chosen = args.parts.split(",")
    unknown = [part for part in chosen if part not in parts]
    if unknown:
        parser.error(f"--parts: expected some of {', '.join(parts)}, got '{unknown[0]}'")
    if "python" in chosen and args.python is None:
        parser.error("--parts python needs --python OLD_PATH NEW_PATH")
    new_rows = chosen_rows(NEW_ROWS, args.only)
    if args.only and not parts["cuda"] and not new_rows:
        parser.error(f"--only: no CUDA row's name contains '{args.only}'")
    report = load(args.out)
    report["title"] = args.title or report.get("title", "Old and new program in turn")
    for count in range(args.rounds):
        for part in chosen:
            for measure in parts[part]:
                add_round(report, *measure)
            if part == "cuda" and count < args.new_rounds:
                for name, value in cuda_rows(args.new, new_rows, args.repeat).items():
                    report["rows"].setdefault(name, {"old": [], "new": []})["new"].append(value)
            write(report, args.out)
        print(f"round {count + 1} of {args.rounds}", flush=True)
    write(report, args.out)
    print(as_text(report), end="")


if __name__ == "__main__":
    main()
