# SPDX-License-Identifier: Apache-2.0
"""QK-clip: rows of query and key projections scaled head by head, and the radii with them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rode import _engine
from rode._checks import names_of
from rode._shards import is_dtensor

OPERATION = "[scale heads]"
HEADS_OF_PARTS = (
    f"{OPERATION} with several processes each has a part of the weights; scale them before the "
    "optimizer is made, or use radius=adaptive and scale them yourself"
)


def refuse(text: str) -> None:
    raise _engine.OptionError(f"{OPERATION} {text}")


def checked(factors: Sequence[float] | torch.Tensor) -> list[float]:
    values = [float(factor) for factor in factors]
    for value in values:
        if not (math.isfinite(value) and value > 0):
            refuse(f"factors: {value!r}; expected positive numbers, one per head")
    return values


def scale_heads(
    name: str,
    factors: Sequence[float] | torch.Tensor,
    groups: list[dict[str, Any]],
    state: Mapping[torch.Tensor, dict[str, torch.Tensor]],
) -> None:
    """Of the parameter of this name."""
    names = iter(names_of(groups))
    for group in groups:
        for parameter in group["params"]:
            if next(names) == name:
                if is_dtensor(parameter):
                    raise _engine.Error(HEADS_OF_PARTS)
                scale_rows(name, parameter, factors, group, state.get(parameter, {}))
                return
    refuse(f"no parameter '{name}'; expected one of the names in routing_table()")


@torch.no_grad()
def scale_rows(
    name: str,
    parameter: torch.Tensor,
    factors: Sequence[float] | torch.Tensor,
    group: Mapping[str, Any],
    state: Mapping[str, torch.Tensor],
) -> None:
    """Multiplies the rows of every head by its factor; what cannot be is refused before anything
    has changed."""
    values = checked(factors)
    layout = group.get("layout", "out_in")
    if layout.startswith("experts_"):
        refuse(f"'{name}' has layout={layout}, a matrix for every expert; expected a projection with "
               "layout=out_in or in_out")  # fmt: skip
    if parameter.dim() != 2:
        refuse(f"'{name}' has shape {tuple(parameter.shape)}; expected a projection of rank 2")
    in_out = layout == "in_out"
    rows = parameter.shape[-1] if in_out else parameter.shape[0]
    if not values or rows % len(values) != 0:
        refuse(
            f"'{name}' has {rows} rows of the fan-out and {len(values)} factors; expected one "
            "factor per head, whose number divides the rows"
        )
    if "low_bits" in state:
        refuse(f"'{name}' has rounding = exact, whose low bits belong to the weights as they are; "
               "use rounding=stochastic")  # fmt: skip
    radius = state.get("radius")
    if radius is not None and radius.numel() not in (1, rows):
        refuse(f"'{name}' is split into {radius.numel()} matrices whose radii are kept; scale "
               "parameters that are not split, or use radius=adaptive")  # fmt: skip
    each = torch.tensor(values, device=parameter.device).repeat_interleave(rows // len(values))
    each = each.to(parameter.dtype)  # rounded once: the radii follow what the weights are given
    before = torch.linalg.vector_norm(parameter.float())
    parameter.mul_(each if in_out else each[:, None])
    if radius is None:
        return
    if radius.numel() == rows and rows > 1:
        radius.mul_(each.to(radius.dtype))
    elif float(before) > 0:
        radius.mul_(torch.linalg.vector_norm(parameter.float()) / before)
