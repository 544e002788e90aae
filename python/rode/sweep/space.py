# SPDX-License-Identifier: Apache-2.0
"""A search space: log-uniform ranges, options with a fixed value, options tied to another."""

import math
from dataclasses import dataclass
from typing import Any

from rode._command import BadUsage

Values = dict[str, float]


def number_text(value: float) -> str:
    """Short, exact, and whole where it is: some options take no fraction."""
    text = repr(float(value))
    return text.removesuffix(".0")


@dataclass(frozen=True)
class Space:
    ranges: dict[str, tuple[float, float]]
    tied: dict[str, str]  # option to the option whose value it takes
    fixed: dict[str, str]  # as texts of --set

    def settings(self, values: Values) -> dict[str, str]:
        """Every option of a trial as the text of its --set."""
        drawn = {key: number_text(values[key]) for key in self.ranges}
        tied = {key: number_text(values[source]) for key, source in self.tied.items()}
        return {**self.fixed, **drawn, **tied}

    def described(self) -> dict[str, Any]:
        """As JSON, which read_space takes: a fixed value is kept as its text."""
        ranges = {key: list(ends) for key, ends in self.ranges.items()}
        return {
            **ranges,
            **self.tied,
            **{key: {"value": text} for key, text in self.fixed.items()},
        }

    def require_inside(self, values: Values, what: str) -> None:
        for key, value in values.items():
            if key not in self.ranges:
                raise BadUsage(
                    f"[sweep] {what}: '{key}' has no range; expected {', '.join(self.ranges)}; "
                    "leave it out, or give it a range with --space"
                )
            low, high = self.ranges[key]
            if not low <= value <= high:
                raise BadUsage(
                    f"[sweep] {what}: {key} = {value}; expected {low} to {high}; correct it, or "
                    f"widen the range with --space {key}=LOW:HIGH"
                )


def read_space(table: dict[str, Any]) -> Space:
    """From the JSON of `rode tasks`, whose parser has checked it, or of described()."""
    ranges = {key: (v[0], v[1]) for key, v in table.items() if isinstance(v, list)}
    tied = {key: v for key, v in table.items() if isinstance(v, str)}
    fixed = {key: v["value"] for key, v in table.items() if isinstance(v, dict)}
    fixed |= {key: number_text(v) for key, v in table.items() if isinstance(v, int | float)}
    return Space(ranges, tied, fixed)


def _range(text: str) -> tuple[str, tuple[float, float]]:
    key, _, ends = text.partition("=")
    try:
        low, high = map(float, ends.split(":"))
    except ValueError:
        low = high = math.nan
    if not key or not 0 < low < high < math.inf:
        raise BadUsage(f"[--space] '{text}'; expected KEY=LOW:HIGH with 0 < LOW < HIGH")
    return key, (low, high)


def _pair(flag: str, text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    if not key or not value:
        raise BadUsage(f"[{flag}] '{text}'; expected KEY=VALUE")
    return key, value


def changed(space: Space, ranges: list[str], ties: list[str], fixed: list[str]) -> Space:
    """With what the command line says; an option has one form, the last given."""
    out = Space(dict(space.ranges), dict(space.tied), dict(space.fixed))
    told: list[tuple[dict[str, Any], list[tuple[str, Any]]]] = [
        (out.ranges, [_range(text) for text in ranges]),
        (out.tied, [_pair("--tie", text) for text in ties]),
        (out.fixed, [_pair("--set", text) for text in fixed]),
    ]
    for form, pairs in told:
        for key, value in pairs:
            for other, _ in told:
                other.pop(key, None)
            form[key] = value
    for key, source in list(out.tied.items()):
        if source in out.fixed:
            out.fixed[key] = out.fixed[source]
            del out.tied[key]
        elif source not in out.ranges:
            raise BadUsage(f"[--tie] {key} = {source}; expected one of {', '.join(out.ranges)}")
    return out
