# SPDX-License-Identifier: Apache-2.0
"""What is found wrong with parameters before a step: types, forms, places, names."""

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from rode._engine import Error, OptionError

STEPPED = (torch.float32, torch.bfloat16)


def names_of(groups: list[dict[str, Any]]) -> list[str]:
    names: list[str] = []
    for group in groups:
        given = group.get("param_names")
        count = len(group["params"])
        names += given or [f"param.{len(names) + i}" for i in range(count)]
    return names


def check_names(groups: list[dict[str, Any]]) -> None:
    """State and messages are keyed by them."""
    for index, group in enumerate(groups):
        given, count = group.get("param_names"), len(group["params"])
        if given and len(given) != count:
            raise OptionError(
                f"[groups] group {index} has {len(given)} param_names for {count} parameters; "
                "give one name to each parameter"
            )
    params = [p for group in groups for p in group["params"]]
    seen: dict[str, torch.Tensor] = {}
    for name, p in zip(names_of(groups), params, strict=True):
        if not isinstance(name, str):
            raise OptionError(f"[groups] param_names contains {name!r}; expected strings")
        if seen.setdefault(name, p) is not p:
            raise OptionError(
                f"[groups] two parameters are named '{name}'; names tell their state apart: give "
                "each its own"
            )


def check_parameter(name: str, p: torch.Tensor) -> None:
    """Raises where the engine cannot step a tensor of this type and form."""
    if p.dtype not in STEPPED or p.layout is not torch.strided:
        kind = p.dtype if p.layout is torch.strided else p.layout
        raise Error(
            f"[parameters] parameter '{name}' is {kind}; weights must be dense, float32 or bfloat16"
        )
    if any(n > 1 and step == 0 for n, step in zip(p.shape, p.stride(), strict=True)):
        raise Error(
            f"[parameters] parameter '{name}' is expanded: several of its elements share one "
            "place in memory; make it from a clone()"
        )


def one_device(names: list[str], params: list[torch.Tensor]) -> torch.device:
    if not params:  # groups may be empty, as torch's
        return torch.device("cpu")
    device = params[0].device
    for name, p in zip(names, params, strict=True):
        if p.device != device:
            raise Error(
                f"[parameters] '{names[0]}' is on {device}, '{name}' on {p.device}; an optimizer "
                "works on one device; make one optimizer per device"
            )
    if device.type not in ("cpu", "cuda"):
        raise Error(
            f"[parameters] '{names[0]}' is on {device}; expected cpu or cuda; move the model there "
            "before its optimizer is made"
        )
    return device


def repeated(names: list[str], params: list[torch.Tensor]) -> str:
    """A sentence about a Parameter that is there twice; empty: none is."""
    seen: dict[int, str] = {}
    for name, p in zip(names, params, strict=True):
        first = seen.setdefault(id(p), name)
        if first is not name:
            return (
                f"'{first}' and '{name}' are the same Parameter, given twice, and would be "
                "stepped twice; give it once"
            )
    return ""


def check_memory(names: list[str], params: list[torch.Tensor]) -> None:
    """Raises for two parameters that are one in memory."""
    seen: dict[int, tuple[str, torch.Tensor]] = {}
    for name, p in zip(names, params, strict=True):
        # The shards of a mesh show no address, and what has no shape yet has none.
        if is_lazy(p) or p.numel() == 0 or hasattr(p, "to_local") or p.data_ptr() == 0:
            continue
        first, other = seen.setdefault(p.data_ptr(), (name, p))
        if other is not p:
            raise Error(
                f"[parameters] '{first}' and '{name}' are two parameters on the same memory and "
                "would be stepped twice; tie them as one Parameter object"
            )


def check_gradient(name: str, grad: torch.Tensor, p: torch.Tensor) -> None:
    """Whether it can be the gradient of what is stepped."""
    if grad.layout is not torch.strided:
        raise Error(
            f"[step] gradient of '{name}' is {grad.layout}; expected a dense one; use "
            "sparse=False in its module"
        )
    if grad.shape != p.shape or grad.device != p.device:
        raise Error(
            f"[step] gradient of '{name}' is {tuple(grad.shape)} on {grad.device}; the "
            f"parameter is {tuple(p.shape)} on {p.device}"
        )
