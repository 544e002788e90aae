# SPDX-License-Identifier: Apache-2.0
"""The table of a study: mean and sample deviation over seeds, differences over common seeds."""

import dataclasses
import math
import statistics

FEWEST_FOR_AN_ERROR = 3  # seeds: a deviation of two says little


@dataclasses.dataclass
class Row:
    name: str
    options: dict
    tried: list[dict]
    trials: list[dict | None]  # result.json of each, where it is done
    finals: dict[int, dict | None]  # by seed

    def by_seed(self) -> dict[int, float]:
        """Final losses of the runs that were finished."""
        return {
            seed: result["final_loss"]
            for seed, result in self.finals.items()
            if result and result["status"] == "finished"
        }

    def losses(self) -> list[float]:
        return list(self.by_seed().values())


def welch(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """mean(a) - mean(b), its standard error for unequal variances, and the degrees of freedom."""
    difference = statistics.mean(a) - statistics.mean(b)
    if len(a) < 2 or len(b) < 2:
        return difference, math.nan, math.nan
    va, vb = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    if va + vb == 0:
        return difference, 0.0, math.inf
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return difference, math.sqrt(va + vb), freedom


def difference_cells(row: Row, base: Row) -> list[str]:
    """The difference, its degrees of freedom, and how many seeds it is over: those of both rows."""
    here, there = row.by_seed(), base.by_seed()
    common = sorted(set(here) & set(there))
    if row is base or not common:
        return ["", "", ""]
    difference, error, freedom = welch([here[s] for s in common], [there[s] for s in common])
    if len(common) < FEWEST_FOR_AN_ERROR:
        return [f"{difference:+.4f}", "", str(len(common))]
    return [f"{difference:+.4f} ± {error:.4f}", f"{freedom:.1f}", str(len(common))]


def outcome(row: Row) -> str:
    losses = row.losses()
    if not losses:
        return "-"
    spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
    return f"{statistics.mean(losses):.4f}{spread}"


def seeds(row: Row) -> str:
    done = [r for r in row.finals.values() if r]
    diverged = sum(r["status"] != "finished" for r in done)
    left = len(row.finals) - len(done)
    text = f"{len(done)}"
    text += f", {diverged} diverged" if diverged else ""
    return text + (f", {left} to do" if left else "")


def words(options: dict) -> str:
    return " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in options.items()
    )


def tried(row: Row) -> str:
    parts = []
    for options, result in zip(row.tried, row.trials, strict=True):
        if result is None:
            loss = "to do"
        elif result["status"] == "finished":
            loss = f"{result['final_loss']:.4f}"
        else:
            loss = "diverged"
        parts.append(f"{words(options)}: {loss}")
    return "; ".join(parts)


def markdown(rows: list[Row], base: str | None) -> str:
    """The lowest mean first; rows without a finished run last."""
    by_name = {row.name: row for row in rows}
    if base and base not in by_name:
        raise SystemExit(f"--base '{base}' is no row; expected one of {', '.join(by_name)}")
    reference = by_name[base] if base else rows[0]
    head = ["row", "final loss", f"difference to {reference.name}", "degrees of freedom"]
    head += ["seeds in common", "norm", "seeds", "options", "trials"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in sorted(rows, key=lambda r: statistics.mean(r.losses() or [math.inf])):
        cells = [row.name, outcome(row), *difference_cells(row, reference)]
        norms = [r["weight_norm"] for r in row.finals.values() if r and r["status"] == "finished"]
        cells.append(f"{statistics.mean(norms):.1f}" if norms else "")
        lines.append("| " + " | ".join([*cells, seeds(row), words(row.options), tried(row)]) + " |")
    lines.append("")
    lines.append(
        "After ± stands the sample deviation over seeds. A difference is over the seeds that both "
        f"rows have; from {FEWEST_FOR_AN_ERROR} of them on it has its standard error for unequal "
        "variances (Welch, as of independent samples: it does not use that the seeds are the same) "
        "and the degrees of freedom."
    )
    return "\n".join(lines)
