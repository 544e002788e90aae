# SPDX-License-Identifier: Apache-2.0
"""State tensors in the types that the engine asks for: fp32, bf16, or int8 with scales."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from rode import _engine

TYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.uint16: "U16",
    torch.int8: "I8",
}
TENSOR_TYPES = {text: dtype for dtype, text in TYPE_NAMES.items()}

# By key: shape and type that the engine asks for.
Plan: TypeAlias = dict[str, tuple[list[int], torch.dtype]]

_STORAGES = (torch.float32, torch.bfloat16, torch.int8)
_ABSENT = (0, "F32", [0])


def scale_key(key: str) -> str:
    return f"{key}_scale"


def _spec(tensor: Any) -> tuple[int, str, list[int]]:
    if tensor is None:
        return _ABSENT
    return tensor.data_ptr(), TYPE_NAMES[tensor.dtype], list(tensor.shape)


def _on_host(tensor: Any) -> Any:
    if hasattr(tensor, "full_tensor"):  # a DTensor: all ranks convert it together
        tensor = tensor.full_tensor()
    return tensor.detach().cpu().contiguous() if isinstance(tensor, torch.Tensor) else None


def _convert(name: str, source: torch.Tensor, scales: Any, plan: Plan, key: str) -> dict[str, Any]:
    """One entry in the type of the plan, on the device where it was."""
    made = {
        own: torch.empty(plan[own][0], dtype=plan[own][1])
        for own in (key, scale_key(key))
        if own in plan
    }
    given, given_scales = _on_host(source), _on_host(scales)
    _engine.convert_state(
        name, _spec(given), _spec(given_scales), _spec(made[key]), _spec(made.get(scale_key(key)))
    )
    return {own: tensor.to(source.device) for own, tensor in made.items()}


def began_at_zero(entries: Mapping[str, Any]) -> bool | None:
    """What the state of a matrix shows about its start: the moments of the rest's rule are there
    where it was zero (`on_zero`). None: there is no state yet."""
    return "exp_avg" in entries if entries else None


def check_form(
    name: str, key: str, tensor: torch.Tensor, shape: list[int], dtype: torch.dtype
) -> None:
    """Raises where an entry of a parameter's state is not what the engine asks for."""
    if list(tensor.shape) != shape or tensor.dtype != dtype:
        raise _engine.Error(
            f"[state] '{key}' of parameter '{name}' is {tensor.dtype} {tuple(tensor.shape)}; "
            f"expected {dtype} {tuple(shape)}; load it with the parameters and options that saved "
            "it"
        )


def as_planned(entries: dict[str, Any], name: str, plan: Plan) -> dict[str, Any]:
    """State with the storage that `state_dtype` has now. What is stored so already stays the same
    tensor; what cannot be converted stays for the checks to refuse. `name` goes before the keys in
    errors."""
    out = dict(entries)
    for key, (shape, dtype) in plan.items():
        value = entries.get(key)
        if not isinstance(value, torch.Tensor) or value.dtype is dtype:
            continue
        if not (value.dtype in _STORAGES and dtype in _STORAGES and list(value.shape) == shape):
            continue
        scales = entries.get(scale_key(key))
        if value.dtype is torch.int8 and scales is None:
            continue
        if torch.int8 in (value.dtype, dtype):
            out.update(_convert(name + key, value, scales, plan, key))
        else:
            out[key] = value.to(dtype)
    for key in plan:
        if scale_key(key) not in plan:
            out.pop(scale_key(key), None)
    return out


def widened(entries: dict[str, Any]) -> dict[str, Any]:
    """A parameter's state with fp32 for int8. The scales stay: with them the integers come back."""
    out = dict(entries)
    for key, value in entries.items():
        if isinstance(value, torch.Tensor) and value.dtype is torch.int8:
            plan: Plan = {key: (list(value.shape), torch.float32)}
            out.update(_convert(key, value, entries[scale_key(key)], plan, key))
    return out
