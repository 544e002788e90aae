# SPDX-License-Identifier: Apache-2.0
"""State between `state_dict` and the engine: what torch.optim's own classes write and read, and
what does not fit."""

import math
from typing import Any

import torch

from rode._engine import Error
from rode._stored_state import Plan, as_planned, widened


def to_torch(state_dict: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """With the names that torch.optim has, int8 as float32, and counts as it keeps them: float32,
    without dimensions, in the memory of the host."""
    state = state_dict["state"]
    counted = [number for number, entries in state.items() if _is_count(entries.get("step"))]
    # One transfer for all, where they are on a device.
    counts = torch.cat([state[number]["step"] for number in counted]).tolist() if counted else []
    steps = {
        n: torch.tensor(float(c), dtype=torch.float32) for n, c in zip(counted, counts, strict=True)
    }
    converted = {}
    for number, entries in state.items():
        wide = widened(entries)  # torch would take the integers as they are
        converted[number] = {names.get(key, key): value for key, value in wide.items()}
        if number in steps:
            converted[number]["step"] = steps[number]
    return {**state_dict, "state": converted}


def _is_count(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.int64 and value.dim() == 1


def is_torchs(entries: dict[str, Any], names: dict[str, str]) -> bool:
    """Whether a parameter's state is as torch.optim keeps it."""
    counted = "step" in entries and not _is_count(entries["step"])
    return counted or any(key in entries for key in names.values())


def from_torch(
    entries: dict[str, Any], name: str, plan: Plan, names: dict[str, str]
) -> dict[str, Any]:
    """A parameter's state as the engine keeps it, of torch.optim's or of its own."""
    own = {given: key for key, given in names.items()}
    # torch's SGD without momentum keeps nothing, or None.
    out = {own.get(key, key): value for key, value in entries.items() if value is not None}
    if not out:
        return out
    for key, (shape, dtype) in plan.items():
        value = out.get(key)
        if key == "step" and value is not None:
            out[key] = torch.tensor([_count(value, name)], dtype=dtype)
        elif key == "low_bits" and not (value is not None and value.dtype is dtype):
            # torch has none: the weights are what they are.
            out[key] = torch.zeros(shape, dtype=dtype)
        elif isinstance(value, torch.Tensor) and value.is_floating_point():
            # torch keeps it in the type of the parameter.
            out[key] = value.to(dtype if dtype.is_floating_point else torch.float32)
    return as_planned(out, f"{name}.", plan)


def _count(value: Any, name: str) -> int:
    whole = not isinstance(value, torch.Tensor) or value.numel() == 1
    number = float(value) if whole else math.nan
    if not (number >= 0 and number.is_integer()):
        raise Error(
            f"[state] 'step' of parameter '{name}' is {value}; expected a whole number >= 0"
        )
    return int(value)


def check_state(entries: dict[str, Any], name: str, plan: Plan) -> None:
    """Raises if the engine could not continue from a parameter's state."""
    if not entries:
        return
    for key, (shape, dtype) in plan.items():
        if key not in entries:
            raise Error(
                f"[state] parameter '{name}' has state {sorted(entries)}, but no '{key}'; it "
                "belongs to another optimizer or other options"
            )
        value = entries[key]
        if not isinstance(value, torch.Tensor):
            raise Error(f"[state] '{key}' of parameter '{name}' is {value!r}; expected a tensor")
        if list(value.shape) != shape or value.dtype != dtype:
            raise Error(
                f"[state] '{key}' of parameter '{name}' is {value.dtype} {tuple(value.shape)}; "
                f"expected {dtype} {tuple(shape)}; load it with the parameters and options that "
                "saved it"
            )
