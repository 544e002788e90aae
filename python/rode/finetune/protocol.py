# SPDX-License-Identifier: Apache-2.0
"""The paper's protocol: its constants, the six optimizers with their rates and search spaces
(presets.json), and how options of the command line change them."""

import difflib
import functools
import inspect
import json
import math
import pathlib
from dataclasses import dataclass
from typing import Any

import torch

import rode
from rode import _engine
from rode._command import BadUsage
from rode._options import from_text, settings

PRESETS = pathlib.Path(__file__).with_name("presets.json")
# Every two-dimensional tensor, embedding and head included, takes the matrix rule.
ROUTE = "all_matrices"
ROUNDINGS = ("nearest", "stochastic", "exact")


@functools.cache
def data() -> dict[str, Any]:
    """presets.json as it is."""
    return dict(json.loads(PRESETS.read_text("utf-8")))


@dataclass(frozen=True)
class Preset:
    """An optimizer of the paper's table."""

    name: str
    label: str
    kind: type[torch.optim.Optimizer]
    options: dict[str, Any]
    search: dict[str, list[float]]  # bounds of log-uniform sampling
    same_rate: bool  # one rate for all parameters
    algorithm_1: dict[str, Any]  # what --published changes
    published: dict[str, tuple[float, float]]  # mean and sample SD


@functools.cache
def presets() -> dict[str, Preset]:
    """The six rows, in the paper's order."""
    return {
        name: Preset(
            name=name,
            label=row["label"],
            kind=getattr(rode, row["class"]),
            options={k: tuple(v) if isinstance(v, list) else v for k, v in row["options"].items()},
            search=row["search"],
            same_rate=row["same_rate"],
            algorithm_1=row.get("algorithm_1", {}),
            published={k: (mean, sd) for k, (mean, sd) in row["published"].items()},
        )
        for name, row in data()["optimizers"].items()
    }


def _engine_name(preset: Preset) -> str:
    return preset.kind.__name__.lower()


def _pairs(given: list[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise BadUsage(f"[--set] '{text}'; expected key=value, such as lr=1e-5")
        if key in out:
            raise BadUsage(f"[--set] '{key}' is given twice; give it once")
        out[key] = value
    return out


def options_of(
    name: str, changes: list[str], rounding: str, seed: int, published: bool
) -> dict[str, Any]:
    """Every option of a run: the preset's, Algorithm 1's if requested, then `changes`, each
    "key=value"."""
    if name not in presets():
        raise BadUsage(f"[--optimizer] unknown '{name}'; expected {', '.join(presets())}")
    preset = presets()[name]
    options = {**preset.options, "rounding": rounding, "seed": seed}
    if published:
        options.update(preset.algorithm_1)
    live = {key: is_live for key, _, _, is_live, _ in _engine.options(_engine_name(preset), [])}
    signature = inspect.signature(preset.kind).parameters
    known = sorted(key for key in live if key in signature)
    pairs = _pairs(changes)
    for key, text in pairs.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"expected one of {', '.join(known)}"
            raise BadUsage(f"[--set] unknown option '{key}' of {name}; {hint}")
        try:
            options[key] = from_text(text, live[key])
        except ValueError:
            raise BadUsage(f"[--set] {key} = '{text}'; expected a number") from None
    if preset.same_rate and "lr" in pairs and "lr_rest" not in pairs:
        options["lr_rest"] = options["lr"]
    try:
        _engine.options(_engine_name(preset), settings(options))
    except _engine.Error as error:
        raise BadUsage(f"[--set] {error}") from None
    return options


def groups_of(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Exactly two dimensions: the matrix rule; the others: the rest."""
    return rode.param_groups(model, route=ROUTE)


def make_optimizer(name: str, params: Any, options: dict[str, Any]) -> Any:
    kind: Any = presets()[name].kind
    return kind(params, route=ROUTE, **options)


def warmup_steps(steps: int, share: float) -> int:
    return math.ceil(share * steps)


def multiplier(step: int, steps: int, warmup: int) -> float:
    """Of every rate at a step counted from 0: linear warm-up, then a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Scales every rate; lr_rho follows its group's lr (rode._options.coupling)."""
    for group in optimizer.param_groups:
        group["lr"] = group["reference_lr"] * factor
