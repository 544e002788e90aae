# SPDX-License-Identifier: Apache-2.0
"""What a sweep shows while it runs, on standard error, and at its end."""

import sys
import time
from typing import Any

from rode.sweep.plan import Plan
from rode.sweep.propose import FINISHED, Record, best_of


def time_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def options_text(options: dict[str, str]) -> str:
    def shown(text: str) -> str:
        try:
            return f"{float(text):.4g}"
        except ValueError:
            return text

    return " ".join(f"{key}={shown(text)}" for key, text in options.items())


class Progress:
    """Lines of one optimizer. The time left counts the `later` trials of other optimizers too, at the
    pace of this one in this process."""

    def __init__(self, plan: Plan, later: int, quiet: bool) -> None:
        self.plan, self.later, self.quiet = plan, later, quiet
        self.begin = time.monotonic()
        self.ended = 0

    def show(self, history: list[Record], record: Record) -> None:
        self.ended += 1
        if self.quiet:
            return
        done = sum(other.ended for other in history)
        best = best_of(history)
        value = f"{record.value:.4f}" if record.status == FINISHED else record.status
        text = f"{self.plan.optimizer} {done}/{self.plan.trials}: trial {record.number} {value} "
        text += f"({options_text(self.plan.space.settings(record.values))})"
        if best is not None:
            text += f", best {best.value:.4f} (trial {best.number})"
        left = self.plan.trials - done + self.later
        if left > 0:
            pace = (time.monotonic() - self.begin) / self.ended
            text += f", {time_text(left * pace)} left"
        print(text, file=sys.stderr, flush=True)


def table_text(summaries: list[dict[str, Any]]) -> str:
    rows = [["optimizer", "trials", "diverged", "best", "trial", "options"]]
    for told in summaries:
        best = told["best"]
        found = (
            ["none", "", ""]
            if best is None
            else [
                f"{best['value']:.4f}",
                str(best["number"]),
                options_text(best["options"]),
            ]
        )
        rows.append([told["optimizer"], str(told["trials"]), str(told["diverged"]), *found])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
