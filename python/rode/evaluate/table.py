# SPDX-License-Identifier: Apache-2.0
"""`python -m rode evaluate table`: mean and sample SD over seeds, in the form of the paper's table,
with the published values beside."""

import argparse
import csv
import io
import json
import math
import pathlib
import statistics
from dataclasses import dataclass
from typing import Any

from rode import _command
from rode._command import Failed, note, read_json
from rode.evaluate.tasks import TASKS
from rode.finetune.protocol import presets

FORMS = ("markdown", "csv", "latex", "json")
_LOSS = "loss"
_SHARED = ("steps", "split", "format", "limit", "max_new_tokens")
COLUMNS = (_LOSS, *TASKS)
_LABELS = {_LOSS: "Best val. loss", **{name: task.label for name, task in TASKS.items()}}
_EXAMPLES = """\
  python -m rode evaluate table runs/*            folders of runs or of evaluations
  python -m rode evaluate table runs/* --form latex > table.tex
"""


@dataclass(frozen=True)
class Cell:
    mean: float
    sd: float | None  # None of a single seed
    seeds: int
    published: tuple[float, float]
    best: bool = False


def _found(folders: list[pathlib.Path]) -> list[pathlib.Path]:
    """The results in these folders; a run that was not evaluated is left out."""
    out = []
    for folder in folders:
        places = (folder / "results.json", folder / "evaluation" / "results.json")
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            note(f"'{folder}' has no results.json and is left out")
        else:
            out.append(path)
    if not out:
        raise Failed(
            "[table] no results.json in the folders; expected those of evaluations, or of runs that "
            "were evaluated; run python -m rode evaluate --run first"
        )
    return out


def _protocol(result: dict[str, Any]) -> dict[str, Any]:
    """What the runs of an optimizer must share; a seed is their difference."""
    options = {f"option {key}": value for key, value in (result.get("options") or {}).items()}
    options.pop("option seed", None)
    return {**{key: result.get(key) for key in _SHARED}, **options}


def _require_same(
    name: str,
    first: pathlib.Path,
    before: dict[str, Any],
    path: pathlib.Path,
    now: dict[str, Any],
) -> None:
    for key in [*before, *(key for key in now if key not in before)]:
        if before.get(key) != now.get(key):
            raise Failed(
                f"[table] {name}: '{first}' has {key} = {before.get(key)}, '{path}' has "
                f"{now.get(key)}; expected the same in all seeds of an optimizer; name runs of one "
                "protocol, or repeat the evaluation of those that differ"
            )


def gathered(folders: list[pathlib.Path]) -> dict[str, dict[int, dict[str, float]]]:
    """Values by optimizer, seed and column."""
    out: dict[str, dict[int, dict[str, float]]] = {}
    first: dict[str, tuple[pathlib.Path, dict[str, Any]]] = {}  # by optimizer
    for path in _found(folders):
        result = read_json(path, "table")
        name, seed = result.get("optimizer"), result.get("seed")
        if name not in presets() or not isinstance(seed, int):
            raise Failed(
                f"[table] '{path}' does not name an optimizer of the table and a seed (optimizer "
                f"= {name!r}, seed = {seed!r}); evaluate runs of python -m rode finetune with "
                "--run"
            )
        if result.get("limit") is not None:
            note(f"'{path}' has only the first {result['limit']} questions of each benchmark")
        seeds = out.setdefault(name, {})
        if seed in seeds:
            raise Failed(
                f"[table] two folders have {name} with seed {seed}; the second is '{path}'; give "
                "each run once"
            )
        protocol = _protocol(result)
        _require_same(name, *first.setdefault(name, (path, protocol)), path, protocol)
        values = {task: row["accuracy"] for task, row in result["tasks"].items()}
        if result.get("best_validation_loss") is not None:
            values[_LOSS] = result["best_validation_loss"]
        seeds[seed] = values
    return out


def cells(values: dict[str, dict[int, dict[str, float]]]) -> dict[str, dict[str, Cell | None]]:
    """The six rows; None where nothing was measured."""
    out: dict[str, dict[str, Cell | None]] = {}
    for name, preset in presets().items():
        out[name] = {}
        for column in COLUMNS:
            measured = [v[column] for v in values.get(name, {}).values() if column in v]
            if not measured:
                out[name][column] = None
                continue
            sd = statistics.stdev(measured) if len(measured) > 1 else None
            mean, spread = preset.published[column]
            out[name][column] = Cell(statistics.fmean(measured), sd, len(measured), (mean, spread))
    for column in COLUMNS:
        present = {name: cell for name, row in out.items() if (cell := row[column])}
        choose = min if column == _LOSS else max
        best = choose((cell.mean for cell in present.values()), default=math.nan)
        for name, cell in present.items():
            if cell.mean == best:
                out[name][column] = Cell(cell.mean, cell.sd, cell.seeds, cell.published, True)
    return out


def _digits(column: str) -> int:
    return 4 if column == _LOSS else 2


def _numbers(column: str, mean: float, sd: float | None, sign: str) -> str:
    digits = _digits(column)
    return f"{mean:.{digits}f}" if sd is None else f"{mean:.{digits}f} {sign} {sd:.{digits}f}"


def markdown(rows: dict[str, dict[str, Cell | None]]) -> str:
    lines = ["| Optimizer | seeds | " + " | ".join(_LABELS[c] for c in COLUMNS) + " |"]
    lines.append("|---" * (len(COLUMNS) + 2) + "|")
    for name, row in rows.items():
        seeds = max((cell.seeds for cell in row.values() if cell), default=0)
        texts = []
        for column, cell in row.items():
            if cell is None:
                texts.append("-")
                continue
            own = _numbers(column, cell.mean, cell.sd, "±")
            own = f"**{own}**" if cell.best else own
            texts.append(f"{own} (paper {_numbers(column, *cell.published, '±')})")
        lines.append(f"| {presets()[name].label} | {seeds} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def latex(rows: dict[str, dict[str, Cell | None]]) -> str:
    arrows = ["$\\downarrow$" if c == _LOSS else "$\\uparrow$" for c in COLUMNS]
    heads = " & ".join(f"{_LABELS[c]} {a}" for c, a in zip(COLUMNS, arrows, strict=True))
    lines = ["\\begin{tabular}{l" + "c" * len(COLUMNS) + "}", "\\toprule",
             f"Optimizer & {heads} \\\\", "\\midrule"]  # fmt: skip
    for name, row in rows.items():
        texts = []
        for column, cell in row.items():
            text = "--" if cell is None else _numbers(column, cell.mean, cell.sd, "\\pm")
            if cell is not None:
                text = f"$\\mathbf{{{text}}}$" if cell.best else f"${text}$"
            texts.append(text)
        lines.append(f"{presets()[name].label} & " + " & ".join(texts) + " \\\\")
        paper = presets()[name].published
        published = (f"${_numbers(c, *paper[c], chr(92) + 'pm')}$" for c in COLUMNS)
        lines.append("\\quad published & " + " & ".join(published) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _as_rows(rows: dict[str, dict[str, Cell | None]]) -> list[dict[str, Any]]:
    return [
        {
            "optimizer": presets()[name].label,
            "column": _LABELS[column],
            "mean": cell.mean if cell else None,
            "sd": cell.sd if cell else None,
            "seeds": cell.seeds if cell else 0,
            "best": cell.best if cell else False,
            "published_mean": presets()[name].published[column][0],
            "published_sd": presets()[name].published[column][1],
        }
        for name, row in rows.items()
        for column, cell in row.items()
    ]


def as_csv(rows: dict[str, dict[str, Cell | None]]) -> str:
    table = _as_rows(rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return out.getvalue()


def main(arguments: list[str]) -> int:
    parser = _command.parser(
        "evaluate table",
        "Print the paper's table: six optimizers, mean and sample SD over seeds.",
        _EXAMPLES,
    )
    parser.add_argument("folders", nargs="+", type=pathlib.Path, metavar="DIR")
    parser.add_argument(
        "--form", default="markdown", choices=FORMS, help="form of the table (markdown)"
    )
    parser.add_argument("--json", action="store_true", help="the same as --form json")
    given = parser.parse_args(arguments)
    rows = cells(gathered(given.folders))
    form = "json" if given.json else given.form
    if form == "json":
        print(json.dumps(_as_rows(rows), indent=2))
    else:
        print({"markdown": markdown, "latex": latex, "csv": as_csv}[form](rows), end="")
    return _command.DONE
