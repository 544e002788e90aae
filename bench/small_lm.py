# SPDX-License-Identifier: Apache-2.0
"""Compares the optimizers on a small byte-level language model, each with the same number of rate
trials, at the mean of three seeds; docs/small_lm.md tells how.

    python bench/small_lm.py prepare --data ../shared/data/wiki_en --to build/small_lm_data
    python bench/small_lm.py run --data build/small_lm_data --device cuda --jobs 12 --out FILE.json
    python bench/small_lm.py table FILE.json
"""

import argparse
import ast
import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import pathlib
import platform
import subprocess
import sys
import time
from typing import Any

import small_lm_data
import small_lm_plan
import torch
from small_lm_model import INITS, Shape

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared/data/wiki_en"

try:
    import rode
    from rode import _engine
except ImportError as missing:
    print(f"small_lm: {missing}; build the package with `pip install .` first", file=sys.stderr)
    sys.exit(2)

from small_lm_study import Refused, Study, execute
from small_lm_train import Settings, start_worker


def check_device(device: str, graph: bool) -> None:
    if device != "cuda":
        if graph:
            raise Refused("--graph needs --device cuda")
        return
    if not torch.cuda.is_available():
        raise Refused(f"--device cuda, but torch {torch.__version__} finds no CUDA device")
    if not _engine.with_cuda():
        raise Refused(
            f"--device cuda, but rode was built without CUDA ({_engine.__file__}); build it with "
            "`RODE_WITH_CUDA=ON pip install .`, with nvcc in PATH or CUDACXX"
        )


def environment(device: str) -> dict[str, Any]:
    git = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip() or None,
        "rode": rode.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    }


def overrides(given: list[str]) -> dict[str, dict[str, Any]]:
    """From OPTIMIZER.KEY=VALUE; the key `centre` moves the rates that are tried."""
    out: dict[str, dict[str, Any]] = {}
    for text in given:
        place, equals, value = text.partition("=")
        name, dot, key = place.partition(".")
        if not (equals and dot and key) or name not in small_lm_plan.ENTRIES:
            raise Refused(f"--set {text}: expected OPTIMIZER.KEY=VALUE")
        try:
            out.setdefault(name, {})[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            out.setdefault(name, {})[key] = value
    return out


def settings_of(options: argparse.Namespace) -> Settings:
    shape = Shape()
    settings = Settings(
        init=options.init, bf16=options.bf16, compile=options.compile, graph=options.graph
    )
    changes: dict[str, Any] = {}
    if options.quick:
        shape = dataclasses.replace(shape, layers=2, width=64, heads=2, hidden=128, context=64)
        changes = {"steps": 20, "batch": 8, "evaluations": 2, "valid_windows": 64}
    steps = options.steps or changes.get("steps", settings.steps)
    changes.update(steps=steps, warmup=max(1, steps // 10), shape=shape)
    if options.batch:
        changes["batch"] = options.batch
    return dataclasses.replace(settings, **changes)


def run_command(options: argparse.Namespace) -> int:
    check_device(options.device, options.graph)
    names = options.optimizers.split(",") if options.optimizers else list(small_lm_plan.ENTRIES)
    for name in names:
        if name not in small_lm_plan.ENTRIES:
            raise Refused(
                f"optimizer '{name}'; expected some of {', '.join(small_lm_plan.ENTRIES)}"
            )
    settings = settings_of(options)
    train, valid = small_lm_data.load(options.data)
    config = {
        **dataclasses.asdict(settings),
        "rest_rate": small_lm_plan.REST_RATE,
        "train_bytes": int(train.size),
        "valid_bytes": int(valid.size),
        "device": options.device,
        "set": overrides(options.set),
    }
    # As a file holds it: a list where a tuple was given.
    study = Study(options.out, json.loads(json.dumps(config)), names)
    study.environment = environment(options.device)
    jobs = options.jobs or (8 if options.device == "cuda" else 1)
    threads = max(1, (os.cpu_count() or 1) // jobs)
    # The engine's BLAS has a thread pool of its own, which torch.set_num_threads does not reach.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    deadline = time.monotonic() + (options.max_seconds or float("inf"))
    print(
        f"{len(names)} optimizers, {jobs} at once, {threads} threads each; {options.out}",
        flush=True,
    )
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=start_worker,
        initargs=(options.device, threads, settings, train, valid),
    ) as pool:
        failed = execute(study, pool, deadline, jobs)
    study.save()
    print(small_lm_plan.table(study.rows()))
    if study.missing() and not failed:
        print("not finished: the same command goes on from here")
    return 1 if failed else 0


def prepare_command(options: argparse.Namespace) -> int:
    small_lm_data.prepare(options.data, options.to, options.train_bytes, options.valid_bytes)
    return 0


def table_command(options: argparse.Namespace) -> int:
    print(small_lm_plan.table(json.loads(options.file.read_text("utf-8"))["summary"]))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    path = pathlib.Path
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)

    prepare = commands.add_parser("prepare", help="write a slice of the text as uint8 .npy")
    prepare.set_defaults(command=prepare_command)
    prepare.add_argument("--data", type=path, default=DATA, help="folder of train*, valid*.txt.xz")
    prepare.add_argument("--to", type=path, required=True, help="folder for train.npy, valid.npy")
    prepare.add_argument("--train-bytes", type=int, default=small_lm_data.TRAIN_BYTES)
    prepare.add_argument("--valid-bytes", type=int, default=small_lm_data.VALID_BYTES)

    run = commands.add_parser("run", help="train; finished runs in --out are kept")
    run.set_defaults(command=run_command)
    run.add_argument("--data", type=path, default=DATA, help="prepared folder, or that of the xz")
    run.add_argument("--out", type=path, required=True, help="JSON, written after every run")
    run.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    run.add_argument("--jobs", type=int, help="processes at once (cuda: 8, cpu: 1)")
    run.add_argument("--optimizers", help="comma list; all where not given")
    run.add_argument("--init", choices=INITS, default="0.02", help="deviation of the matrices")
    run.add_argument("--steps", type=int)
    run.add_argument("--batch", type=int)
    run.add_argument("--quick", action="store_true", help="a tiny model and 20 steps")
    run.add_argument("--bf16", action="store_true", help="autocast to bf16")
    run.add_argument("--compile", action="store_true", help="torch.compile the model")
    run.add_argument("--graph", action="store_true", help="CUDA graph of forward and backward")
    run.add_argument("--max-seconds", type=float, help="start no run after this time")
    run.add_argument("--set", action="append", default=[], metavar="OPTIMIZER.KEY=VALUE")

    table = commands.add_parser("table", help="print the table of a file")
    table.set_defaults(command=table_command)
    table.add_argument("file", type=path)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    try:
        return options.command(options)
    except small_lm_data.NoData as reason:
        print(f"small_lm: skipped: {reason}")
        return 0
    except Refused as reason:
        print(f"small_lm: {reason}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
