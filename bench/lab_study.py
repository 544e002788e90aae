# SPDX-License-Identifier: Apache-2.0
"""A series of training runs, made in as many parts as it takes.

  lab_study.py list STUDY [--done FILE ...]
  lab_study.py run STUDY --rode BIN --data DIR --out DIR [--workers N] [--done FILE ...]
                   [--budget S] [--pack FILE]
  lab_study.py unpack FILE ... --out DIR
  lab_study.py table STUDY DIR [--base ROW]

STUDY is a JSON file as in bench/studies/: the task (built in, or a .toml file beside it), its
seeds, and rows of an optimizer with its options, the most important first. A row with `trials`, a
list of options, is first run once with each of them, on `trial_seed` for `trial_steps`; the one of
the lowest final loss is then the row's. `list` prints the runs in the order in which they are begun:
all trials, then all rows of the first seed, of the second, and so on.

`run` makes those that are not done, with `rode train`, in OUT/ROW-seedS, --workers at a time. A
row's seeds wait for all of its trials, so with several workers the seeds of one row may run beside
the last trials of another. None is begun that would not end within the budget of seconds, judged by
the slowest so far per step (before there is one, by --expect); what still runs when it is over is
asked to save and end. The files of earlier parts (--done) are unpacked into OUT first. Of a
finished run only what `rode report` reads is kept; --pack puts those of this part into one .tar.xz
with the SHA-256 of every file, which `unpack` compares.
"""

import argparse
import dataclasses
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import study_files
import study_table

# What the packing and the end of the process may take of the budget.
MARGIN = 15.0
KEYS = {"task", "what", "seeds", "steps", "warmup", "set", "rows"}
KEYS |= {"trial_seed", "trial_steps", "trial_warmup"}


@dataclasses.dataclass
class Run:
    """One call of `rode train`; the name is that of its folder."""

    name: str
    task: str
    optimizer: str
    seed: int
    steps: int = 0  # 0: the task's
    warmup: int | None = None
    settings: dict = dataclasses.field(default_factory=dict)


def read_study(path: pathlib.Path) -> dict:
    study = json.loads(path.read_text())
    if unknown := set(study) - KEYS:
        sys.exit(f"{path}: unknown key '{min(unknown)}'; expected {', '.join(sorted(KEYS))}")
    if study["task"].endswith(".toml"):  # a task of the study's own, beside it
        study["task"] = str(path.parent / study["task"])
    names = [name_of(row) for row in study["rows"]]
    for name in names:
        if names.count(name) > 1:
            sys.exit(f"{path}: two rows are called '{name}'; give one of them a 'name'")
    if study.get("trial_seed") in study["seeds"]:
        sys.exit(f"{path}: trial_seed {study['trial_seed']} is one of the seeds; choose another")
    return study


def name_of(row: dict) -> str:
    return row.get("name", row["optimizer"])


def trials_of(study: dict, row: dict) -> list[Run]:
    settings = study.get("set", {}) | row.get("set", {})
    return [
        Run(
            f"{name_of(row)}-trial{number}",
            study["task"],
            row["optimizer"],
            study["trial_seed"],
            study.get("trial_steps", 0),
            study.get("trial_warmup"),
            settings | options,
        )
        for number, options in enumerate(row.get("trials", []), 1)
    ]


def chosen(study: dict, row: dict, out: pathlib.Path) -> dict | None:
    """The options of the row's best trial; None where one is not done, or none was finished."""
    results = [study_files.result_of(out / trial.name) for trial in trials_of(study, row)]
    if not all(results):
        return None
    good = [
        (result["final_loss"], number)
        for number, result in enumerate(results)
        if result["status"] == "finished"
    ]
    return row["trials"][min(good)[1]] if good else None


def plan(study: dict, out: pathlib.Path) -> list[Run]:
    """All runs that are known so far, in their order: rows without a choice are not."""
    runs = [trial for row in study["rows"] for trial in trials_of(study, row)]
    for seed in sorted({s for row in study["rows"] for s in row.get("seeds", study["seeds"])}):
        for row in study["rows"]:
            if seed not in row.get("seeds", study["seeds"]):
                continue
            options = chosen(study, row, out) if row.get("trials") else {}
            if options is None:
                continue
            settings = study.get("set", {}) | row.get("set", {}) | options
            name = f"{name_of(row)}-seed{seed}"
            length = study.get("steps", 0), study.get("warmup")
            runs.append(Run(name, study["task"], row["optimizer"], seed, *length, settings))
    return runs


def command_of(run: Run, folder: pathlib.Path, arguments) -> list[str]:
    words = ["train", "--task", run.task, "--optimizer", run.optimizer, "--seed", run.seed]
    words += ["--out", folder, "--data", arguments.data, "--device", arguments.device, "--resume"]
    words += ["--no-tensorboard", "--keep", 1]
    words += ["--threads", arguments.threads] if arguments.threads else []
    words += ["--log-interval", arguments.log_interval] if arguments.log_interval else []
    if arguments.scale:
        words += ["--scale", arguments.scale]
    else:
        words += ["--steps", run.steps] if run.steps else []
        words += ["--warmup", run.warmup] if run.warmup is not None else []
    # Checkpoints at the end alone: one of the 114M model holds a gigabyte.
    for key, value in ({"train.checkpoint_interval": 1_000_000} | run.settings).items():
        words += ["--set", f"{key}={study_files.word(value)}"]
    return [str(arguments.rode), *map(str, words)]


def trim(folder: pathlib.Path) -> None:
    """Leaves what `rode report` reads."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in study_files.KEPT:
            path.unlink()


def told(result: dict) -> str:
    if result["status"] != "finished":
        return f"{result['status']} after step {result['steps']}"
    return f"loss {result['final_loss']:.4f}, norm {result['weight_norm']:.1f}"


@dataclasses.dataclass
class Started:
    """A run in progress."""

    run: Run
    folder: pathlib.Path
    process: subprocess.Popen
    begin: float

    def seconds(self) -> float:
        return time.monotonic() - self.begin


def first_ended(started: list[Started], deadline: float) -> Started | None:
    """The one that ends first; None where none does before the deadline."""
    while started:
        for one in started:
            if one.process.poll() is not None:
                return one
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.05)
    return None


class Series:
    """Makes the runs that are not done, several at a time, until they are or the time is over."""

    def __init__(self, planned, arguments: argparse.Namespace, begin: float):
        self.planned = planned  # planned(out): the runs as they are known, asked again after each
        self.arguments = arguments
        self.deadline = begin + arguments.budget - MARGIN
        self.rate = arguments.expect / 600  # seconds per step, of the slowest so far
        self.measured = False
        self.started: list[Started] = []
        self.failed: list[str] = []

    def todo(self) -> list[Run]:
        runs = self.planned(self.arguments.out)
        return [run for run in runs if not study_files.is_done(self.arguments, run)]

    def start(self) -> None:
        """As many as there are workers, and as will end in time."""
        names = {one.run.name for one in self.started}
        for run in self.todo():
            if run.name in names:
                continue
            if len(self.started) >= self.arguments.workers:
                return
            remaining = self.deadline - time.monotonic()
            if self.rate * (run.steps or 600) > remaining:
                return
            folder = self.arguments.out / run.name
            process = subprocess.Popen(command_of(run, folder, self.arguments))
            self.started.append(Started(run, folder, process, time.monotonic()))

    def finish(self, one: Started) -> None:
        """Of one that has ended."""
        self.started.remove(one)
        result = study_files.result_of(one.folder)
        if not result:  # a run that diverged has a result
            words = " ".join(map(str, one.process.args))
            status = one.process.returncode
            self.failed.append(f"{one.run.name} failed with status {status}: {words}")
            return
        trim(one.folder)
        spent = one.seconds()
        if result["status"] == "finished" or not self.measured:
            rate = spent / (one.run.steps or 600)
            self.rate = max(self.rate, rate) if self.measured else rate
            self.measured = True
        print(f"{one.run.name}: {told(result)}, {spent:.1f} s", flush=True)

    def stop(self) -> None:
        """Asks those in progress to save and end; one that has come to its end by then counts."""
        asked = [one for one in self.started if one.process.poll() is None]
        for one in asked:
            one.process.terminate()
        for one in list(self.started):
            one.process.wait()
            ended = one not in asked or study_files.result_of(one.folder)
            # One that was stopped has saved its state, or was ended by the signal before it could.
            if ended or one.process.returncode not in (0, 130, 143, -signal.SIGTERM):
                self.finish(one)

    def make(self) -> None:
        try:
            while not self.failed:
                self.start()
                one = first_ended(self.started, self.deadline)
                if one is None:
                    return
                self.finish(one)
        finally:
            self.stop()


def make_runs(planned, arguments: argparse.Namespace) -> None:
    begin = time.monotonic()  # unpacking is part of the budget
    arguments.out.mkdir(parents=True, exist_ok=True)
    earlier = study_files.unpack_all(arguments.done, arguments.out)
    series = Series(planned, arguments, begin)
    series.make()
    if arguments.pack:  # those that have finished, also where one failed
        count = study_files.pack(arguments.out, arguments.pack, earlier)
        print(f"packed {count} runs in {arguments.pack}")
    todo = series.todo()
    print(f"left out: {' '.join(run.name for run in todo)}" if todo else "all runs are done")
    if series.failed:
        sys.exit("\n".join(series.failed))


def worker_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of runs from 1 on, got '{text}'")
    return int(text)


def run_words(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rode", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the runs")
    parser.add_argument("--done", nargs="+", type=pathlib.Path, default=[], help="packed runs")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds")
    parser.add_argument("--expect", type=float, default=90, help="seconds of 600 steps, at first")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, help="of each run")
    parser.add_argument("--workers", type=worker_count, default=1, help="runs at a time, default 1")
    parser.add_argument("--log-interval", type=int)
    parser.add_argument("--scale", help="of the task, to try the series; its length counts then")
    parser.add_argument("--pack", type=pathlib.Path, help="pack OUT into this file at the end")


def listing(arguments: argparse.Namespace) -> None:
    study = read_study(arguments.study)
    packed = study_files.names(arguments.done)
    print(f"{study['task']}: {study['what']}")
    finals = [{**row, "trials": []} for row in study["rows"]]
    trials = [trial for row in study["rows"] for trial in trials_of(study, row)]
    for run in trials + plan({**study, "rows": finals}, pathlib.Path()):
        options = " ".join(f"{key}={value}" for key, value in run.settings.items())
        print(f"{'done' if run.name in packed else 'to do'}  {run.name}  {options}".rstrip())


def run_study(arguments: argparse.Namespace) -> None:
    study = read_study(arguments.study)
    make_runs(lambda out: plan(study, out), arguments)
    for row in study["rows"]:
        if row.get("trials"):
            print(f"{name_of(row)}: {chosen(study, row, arguments.out) or 'no choice yet'}")


def table(arguments: argparse.Namespace) -> None:
    study = read_study(arguments.study)
    rows = []
    for row in study["rows"]:
        trials = [study_files.result_of(arguments.folder / t.name) for t in trials_of(study, row)]
        finals = {
            seed: study_files.result_of(arguments.folder / f"{name_of(row)}-seed{seed}")
            for seed in row.get("seeds", study["seeds"])
        }
        options = chosen(study, row, arguments.folder) if row.get("trials") else row.get("set", {})
        rows.append(
            study_table.Row(name_of(row), options or {}, row.get("trials", []), trials, finals)
        )
    print(study_table.markdown(rows, arguments.base))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    words = commands.add_parser("list", help="print the runs in their order")
    words.add_argument("study", type=pathlib.Path)
    words.add_argument("--done", nargs="+", type=pathlib.Path, default=[])
    words.set_defaults(function=listing)
    words = commands.add_parser("run", help="make the runs that are not done")
    words.add_argument("study", type=pathlib.Path)
    run_words(words)
    words.set_defaults(function=run_study)
    words = commands.add_parser("unpack", help="lay packed runs out for rode report")
    words.add_argument("files", nargs="+", type=pathlib.Path)
    words.add_argument("--out", type=pathlib.Path, required=True)
    words.set_defaults(
        function=lambda a: print(len(study_files.unpack_all(a.files, a.out)), "runs")
    )
    words = commands.add_parser("table", help="print the outcome of a study")
    words.add_argument("study", type=pathlib.Path)
    words.add_argument("folder", type=pathlib.Path)
    words.add_argument("--base", help="the row that differences are to; default the first")
    words.set_defaults(function=table)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
