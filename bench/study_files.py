# SPDX-License-Identifier: Apache-2.0
"""What is kept of a series of runs: the files that `rode report` reads, packed with their digests."""

import hashlib
import io
import json
import pathlib
import sys
import tarfile

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    tomllib = None

KEPT = ("run.json", "log.jsonl", "times.jsonl", "result.json")
SUMS = "SHA256SUMS"
TASKS = pathlib.Path(__file__).resolve().parents[1] / "src/lab/task/tasks"
# Values of a task that run.json has only where another one lets them act.
ACT_WITH_OTHERS = {"cooldown", "cooldown_form", "cooldown_power", "momentum_start"}


def result_of(folder: pathlib.Path) -> dict | None:
    file = folder / "result.json"
    return json.loads(file.read_text()) if file.exists() else None


def word(value) -> str:
    """As `--set` and run.json write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def same_value(made, asked) -> bool:
    """Numbers by value, one by one where there are several; all else as text."""
    one, two = word(made).split(","), word(asked).split(",")
    try:
        return [float(x) for x in one] == [float(x) for x in two]
    except ValueError:
        return one == two


def made_setting(made: dict, key: str):
    """Of an option, or of a value of the task; None where it does not act in the run."""
    section, _, name = key.rpartition(".")
    values = made["task"][section] if section else made["options"]
    if name not in values and name in ACT_WITH_OTHERS:
        return None
    return values.get(name, 0 if section else "")  # run.json leaves out zeros of the task


def own_length(run) -> dict:
    """Steps and warm-up of the task's file, where it can be found."""
    path = pathlib.Path(run.task)
    path = path if path.suffix == ".toml" else TASKS / f"{run.task}.toml"
    known = tomllib is not None and path.is_file()
    told = tomllib.loads(path.read_text())["train"] if known else {}
    return {key: told[key] for key in ("steps", "warmup") if key in told}


def differences(made: dict, run, scale: str | None) -> list[str]:
    """What run.json says otherwise than the run that is asked for."""
    name = pathlib.Path(run.task).stem if run.task.endswith(".toml") else run.task
    task, train = made["task"], made["task"]["train"]
    pairs = [("task", task["name"], name), ("scale", task.get("scale", ""), scale or "")]
    pairs += [("optimizer", made["optimizer"], run.optimizer), ("seed", made["seed"], run.seed)]
    own = train if scale else train | own_length(run)
    own = own | {k: run.settings[f"train.{k}"] for k in own if f"train.{k}" in run.settings}
    steps = run.steps if run.steps and not scale else own.get("steps")
    warmup = own.get("warmup") if run.warmup is None or scale else run.warmup
    if steps is not None:  # a task of epochs has as many as its data give
        pairs.append(("steps", made["steps"], steps))
    if warmup is not None:
        pairs.append(("warmup", made["warmup"], warmup))
    for key, value in run.settings.items():
        found = made_setting(made, key)
        pairs += [(key, found, value)] if found is not None else []
    return [f"{key} = {was}, not {now}" for key, was, now in pairs if not same_value(was, now)]


def is_done(arguments, run) -> bool:
    """A run of another task, length, size or other options in its place is not this one."""
    folder = arguments.out / run.name
    if not result_of(folder):
        return False
    made = json.loads((folder / "run.json").read_text())
    if other := differences(made, run, arguments.scale):
        sys.exit(
            f"{folder} holds another run than {run.name}: {'; '.join(other)}; choose another --out"
        )
    return True


def pack(folder: pathlib.Path, file: pathlib.Path, without: set[str]) -> int:
    """The finished runs of a folder, except those named in `without`."""
    runs = [p for p in sorted(folder.iterdir()) if p.name not in without and result_of(p)]
    sums = []
    with tarfile.open(file, "w:xz") as archive:
        for path in runs:
            for kept in KEPT:
                name = f"{path.name}/{kept}"
                data = (path / kept).read_bytes()
                sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
                add(archive, name, data)
        add(archive, SUMS, "".join(sums).encode())
    return len(runs)


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def names(files: list[pathlib.Path]) -> set[str]:
    """Of the runs in packed files."""
    found = set()
    for file in files:
        with tarfile.open(file) as archive:
            found |= {pathlib.PurePath(name).parts[0] for name in archive.getnames()}
    return found - {SUMS}


def unpack_all(files: list[pathlib.Path], out: pathlib.Path) -> set[str]:
    """Compares the digests; the names of the runs."""
    for file in files:
        with tarfile.open(file) as archive:
            members = {name: archive.extractfile(name).read() for name in archive.getnames()}
        lines = members.pop(SUMS).decode().splitlines()
        sums = dict(reversed(line.split("  ", 1)) for line in lines)
        for name, data in members.items():
            if sums.pop(name, "") != hashlib.sha256(data).hexdigest():
                sys.exit(f"{file}: '{name}' is not what was packed; restore the file from a copy")
        if sums:
            sys.exit(f"{file}: '{min(sums)}' is missing; restore the file from a copy")
        for name, data in members.items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return names(files)
