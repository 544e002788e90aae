# SPDX-License-Identifier: Apache-2.0
"""The table of a study: mean and sample deviation over seeds, differences for unequal variances."""

import dataclasses
import math
import statistics


@dataclasses.dataclass
class Row:
    name: str
    options: dict
    tried: list[dict]
    trials: list[dict | None]  # result.json of each, where it is done
    finals: list[dict | None]

    def losses(self) -> list[float]:
        return [r["final_loss"] for r in self.finals if r and r["status"] == "finished"]


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


def outcome(row: Row) -> str:
    losses = row.losses()
    if not losses:
        return "-"
    spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
    return f"{statistics.mean(losses):.4f}{spread}"


def seeds(row: Row) -> str:
    done = [r for r in row.finals if r]
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
    head += ["norm", "seeds", "options", "trials"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in sorted(rows, key=lambda r: statistics.mean(r.losses() or [math.inf])):
        cells = [row.name, outcome(row)]
        if row is reference or not row.losses() or not reference.losses():
            cells += ["", ""]
        else:
            difference, error, freedom = welch(row.losses(), reference.losses())
            known = not math.isnan(error)
            cells.append(f"{difference:+.4f}" + (f" ± {error:.4f}" if known else ""))
            cells.append(f"{freedom:.1f}" if known else "")
        norms = [r["weight_norm"] for r in row.finals if r and r["status"] == "finished"]
        cells.append(f"{statistics.mean(norms):.1f}" if norms else "")
        lines.append("| " + " | ".join([*cells, seeds(row), words(row.options), tried(row)]) + " |")
    lines.append("")
    lines.append(
        "Behind ± stands the sample deviation over seeds; with a difference, its standard error "
        "for unequal variances (Welch)."
    )
    return "\n".join(lines)
