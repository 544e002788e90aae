# SPDX-License-Identifier: Apache-2.0
"""What steps each parameter of an optimizer, as text."""

from typing import Any

from rode import _engine
from rode._checks import names_of


def _ruled(
    optimizer: Any, group: dict[str, Any], members: list[tuple[str, list[int]]]
) -> list[tuple[str, str]]:
    """Rule and reason of each parameter of a group."""
    rule = group["rule"]
    if rule == "auto" and optimizer._delegates:
        return _engine.route(group["route"], members)
    reason = "one rule for all" if rule == "auto" else f"its group has rule={rule!r}"
    shown = "matrix" if rule == "auto" else rule
    return [(shown, optimizer._reasons.get(name, reason)) for name, _ in members]


def routing_table(optimizer: Any) -> str:
    rows = [("parameter", "shape", "rule", "lr", "weight_decay", "reason")]
    labels = iter(names_of(optimizer.param_groups))
    for group in optimizer.param_groups:
        members = [(next(labels), list(p.shape)) for p in group["params"]]
        rates = optimizer._rates(group)
        ruled = _ruled(optimizer, group, members)
        for p, (name, shape), (rule, reason) in zip(group["params"], members, ruled, strict=True):
            if rule == "matrix" and optimizer._begins_at_zero(group, p):
                rule, reason = "rest", "zero start"
            elif rule == "matrix" and optimizer._starts_at_zero(group, p):
                reason += ", zero start"
            rows.append((name, str(tuple(shape)), rule, *rates[rule], reason))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    table = "\n".join(lines) + "\n"
    choice = getattr(optimizer._reasons, "choice", "")  # copies of earlier releases have none
    return f"{table}{choice}\n" if choice else table
