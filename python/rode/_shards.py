# SPDX-License-Identifier: Apache-2.0
"""Parameters that are DTensors: which rules may step a shard, where its state lies, and what the
ranks of a mesh agree on before a step."""

import importlib
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import torch

from rode import _engine
from rode._engine import Error
from rode._options import Method, refuse_divided_starts

# What a rank tells about a gradient: present, absent, absent where this rank has no elements,
# placed otherwise than the parameter, not on its mesh.
_PRESENT, _ABSENT, _NOT_NEEDED, _MOVED, _FOREIGN = range(5)
_FLAGS = 5
# What is summed over the ranks of this one's parts of gradients, by index.
Measure: TypeAlias = Callable[[dict[int, torch.Tensor]], torch.Tensor]


def _tensor_module() -> Any:
    """Where DTensor is, once something has made one: its place differs between releases."""
    for name in ("torch.distributed.tensor", "torch.distributed._tensor"):
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "DTensor"):
            return module
    return None


def is_dtensor(tensor: object) -> TypeGuard[Any]:
    module = _tensor_module()
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, the very tensor: a plain one is its own."""
    if not is_dtensor(tensor):
        return tensor
    part = tensor._local_tensor  # to_local() makes a new view every time
    wait = getattr(part, "wait", None)  # a collective on its way
    own: torch.Tensor = part if wait is None else wait()
    return own


class _Planned(NamedTuple):
    elementwise: bool  # a part of the parameter may be stepped by itself
    most_gg: float  # the largest squared norm of a gradient that the engine takes
    experts: int  # of a batch of matrices that are stepped each by itself, how many


def _planned(
    groups: list[dict[str, Any]], methods: list[Method], names: list[str]
) -> dict[str, _Planned]:
    """By name. Empty where no parameter is a DTensor."""
    if not any(is_dtensor(p) for group in groups for p in group["params"]):
        return {}
    labels = iter(names)
    rows = []
    for group, method in zip(groups, methods, strict=True):
        layout = group["layout"]
        # Neither depends on the element type, which has not been checked yet.
        members = [(None, next(labels), 0, list(p.shape), "F32", layout) for p in group["params"]]
        rows += _engine.planned_gradients((*method, members))
    return {row[0]: _Planned(row[1], row[2], row[3]) for row in rows}


def by_rows(p: Any) -> bool:
    """Whether a rank's part of a DTensor is a run of its first dimension."""
    kinds = [placement for placement in p.placements if not placement.is_replicate()]
    return all(type(kind).__name__ == "Shard" and kind.dim == 0 for kind in kinds)


def locate(p: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and first index of this rank's part in the whole, by torch's own function for it,
    which has moved between releases."""
    for name in ("torch.distributed.tensor._utils", "torch.distributed._tensor._utils"):
        with suppress(ImportError, AttributeError):
            found = importlib.import_module(name).compute_local_shape_and_global_offset
            shape, offset = found(p.shape, p.device_mesh, p.placements)
            return tuple(shape), tuple(offset)
    raise Error(
        f"[parameters] PyTorch {torch.__version__} does not tell where a part of a DTensor lies, "
        "which matrices need; use 2.13, with which this is tested"
    )


def first_element(p: torch.Tensor) -> int:
    """Of this rank's part, in the whole; 0 where the part is no run of elements."""
    if not is_dtensor(p) or not by_rows(p) or p.dim() == 0 or p.numel() == 0:
        return 0
    shape, offset = locate(p)
    return offset[0] * (p.numel() // p.shape[0]) if shape[0] else 0


def whole_names(groups: list[dict[str, Any]], methods: list[Method], names: list[str]) -> set[str]:
    """Of DTensors whose parts cannot be stepped by themselves: a part of a matrix has neither its
    norm nor its direction."""
    planned = _planned(groups, methods, names)
    params = [p for group in groups for p in group["params"]]
    named = zip(names, params, strict=True)
    return {
        name
        for name, p in named
        if is_dtensor(p)
        and not (planned[name].elementwise or (planned[name].experts and by_rows(p)))
    }


def batches(
    groups: list[dict[str, Any]], methods: list[Method], names: list[str]
) -> list[torch.Tensor]:
    """The DTensors whose parts are whole matrices of a batch."""
    planned = _planned(groups, methods, names)
    params = [p for group in groups for p in group["params"]]
    named = zip(names, params, strict=True) if planned else ()
    found = {n: p for n, p in named if is_dtensor(p) and planned[n].experts and by_rows(p)}
    refuse_divided_starts(methods, list(found))
    return list(found.values())


def norm_over(p: Any) -> float:
    """At least the norm of a DTensor: what is on several ranks counts several times."""
    if not is_dtensor(p):
        return float(_norm(p.detach()))
    return math.sqrt(_sum_over(p.device_mesh, _norm(local(p).detach()).square()[None])[0])


def refuse_forms(groups: list[dict[str, Any]], names: list[str]) -> None:
    """What nothing can step."""
    labels = iter(names)
    for group in groups:
        for p in group["params"]:
            name = next(labels)
            if getattr(p, "_is_flat_param", False) or getattr(p, "_fsdp_flattened", False):
                raise Error(
                    f"[parameters] parameter '{name}' is flattened by FSDP, a shard of the whole; "
                    "use fully_shard (FSDP2), or train with DistributedDataParallel"
                )
            if not is_dtensor(p):
                continue
            if any(placement.is_partial() for placement in p.placements):
                raise Error(
                    f"[parameters] parameter '{name}' is a DTensor placed as {p.placements}: its "
                    "value is a sum over ranks; redistribute it to Shard or Replicate"
                )


def spread(part: torch.Tensor, like: Any, batch: bool = False) -> torch.Tensor:
    """State of a DTensor from this rank's part of it: of its shape, or, of a batch, with a row for
    each of its matrices."""
    shape, stride = like.shape, like.stride()
    if batch:
        shape = torch.Size((like.shape[0], *part.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
    whole: torch.Tensor = _tensor_module().DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=shape,
        stride=stride,
    )
    return whole


def placed(given: torch.Tensor, like: Any) -> torch.Tensor:
    """A value as the DTensor `like` is placed. Given: whole on every rank, or placed otherwise."""
    value: Any = given
    if not is_dtensor(given):
        module = _tensor_module()
        everywhere = [module.Replicate()] * like.device_mesh.ndim
        value = module.DTensor.from_local(
            given.to(like.device), like.device_mesh, everywhere, run_check=False
        )
    if value.device_mesh != like.device_mesh or value.placements != like.placements:
        value = value.redistribute(like.device_mesh, like.placements)
    out: torch.Tensor = value
    return out


def _norm(grad: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(grad, dtype=torch.float64)
    return norm


def _sum_over(mesh: Any, values: torch.Tensor, group: Any = None) -> list[float]:
    """A sum, because a maximum may lose NaN on its way. `group`: all ranks of the mesh, where
    there is one; else a sum in each dimension."""
    values = values.to(mesh.device_type)
    groups = [group] if group is not None else map(mesh.get_group, range(mesh.ndim))
    for each in groups:
        torch.distributed.all_reduce(values, group=each)
    out: list[float] = values.tolist()
    return out


def _refused(text: str, kind: str) -> Error:
    error = Error(f"[step] {text}")
    error.kind = kind
    return error


class Agreement:
    """What all ranks must decide alike: a step is made by all of them or by none."""

    def __init__(
        self,
        params: list[torch.Tensor],
        names: list[str],
        limits: list[float],
        group: tuple[Any, Any] | None = None,
    ) -> None:
        """`group`: a mesh, and a process group of its ranks."""
        self._params, self._names, self._limits = params, names, limits
        self._group = group
        self.indices = [i for i, p in enumerate(params) if is_dtensor(p)]
        self.refused = 0
        # Those that the last step has: also where this rank has no elements of them, nor a
        # gradient.
        self.active: set[int] = set()
        members: dict[Any, list[int]] = {}
        for index in self.indices:
            members.setdefault(params[index].device_mesh, []).append(index)  # type: ignore[attr-defined]
        # One order on every rank, so that none waits for another in a circle; the largest last:
        # what a part of the ranks found reaches all of them, where the others are slices of it.
        self._meshes = sorted(
            ((mesh, own) for mesh, own in members.items() if mesh.get_coordinate() is not None),
            key=lambda item: (item[0].size(), item[0].mesh.flatten().tolist()),
        )

    def _sum(self, mesh: Any, values: torch.Tensor) -> list[float]:
        given = self._group
        return _sum_over(mesh, values, given[1] if given and given[0] == mesh else None)

    @torch.no_grad()
    def gradients(
        self, skip: bool, marked: bool = False, measure: Measure | None = None
    ) -> dict[int, torch.Tensor]:
        """This rank's part of every DTensor's gradient, by index; or the same error on all ranks,
        those included whose own part is finite. `skip`: instead, gradients that are not finite
        are left out on all ranks. The ranks of the group's mesh tell each other besides whether one
        of them is `marked`, and the sums of what `measure` makes of the gradients."""
        found: dict[int, torch.Tensor] = {}
        self.active = set()
        self.marked, self.measured = marked, []
        text = None if skip else self._plain_trouble()
        failed = text is not None
        kind = "non-finite"
        for mesh, members in self._meshes:
            flags = [self._flags(index, found) for index in members]
            ours = self._group is not None and mesh == self._group[0]
            own = self._squares(members, found, measure if ours else None).tolist()
            marks = [*chain.from_iterable(flags), float(marked), float(failed), *own]
            told = self._sum(mesh, torch.tensor(marks, dtype=torch.float64))
            told, sums = told[: -len(own)], told[-len(own) :]
            *told, marks_here, elsewhere = told
            if ours:
                self.marked = marks_here > 0
            rows = [told[i : i + _FLAGS] for i in range(0, len(told), _FLAGS)]
            moved = [index for index, row in zip(members, rows, strict=True) if _can_move(row)]
            for index in moved:
                p = self._params[index]
                found[index] = local(placed(p.grad, p))  # type: ignore[arg-type]
            if moved:
                sums = self._sum(mesh, self._squares(members, found, measure if ours else None))
            if ours:
                sums, self.measured = sums[: len(members)], sums[len(members) :]
            for index, row, squares in zip(members, rows, sums, strict=True):
                trouble = self._trouble(index, row)
                if trouble is not None and text is None:
                    text, kind = trouble, "missing gradient"
                if row[_PRESENT] or row[_MOVED]:
                    self.active.add(index)
                if skip and not _engine.finite_gradient(squares, self._limits[index]):
                    found.pop(index, None)
                    self.active.discard(index)
                elif text is None:
                    text = self._norm_trouble(index, squares)
            failed = failed or text is not None or elsewhere > 0
        if not failed:
            return found
        self.refused += 1
        raise _refused(
            text
            or "a gradient of another rank was refused; nothing was changed on any rank; see the "
            "error of that rank",
            kind,
        )

    def any_failed(self, failed: bool) -> bool:
        """Whether a rank's step has failed, for reasons that only its engine knows."""
        return self.outcome(failed, torch.zeros(0))[0]

    def outcome(self, failed: bool, values: torch.Tensor) -> tuple[bool, list[float]]:
        """The same, and the sum of `values` over the ranks of the group's mesh."""
        sums: list[float] = []
        for mesh, _ in self._meshes:
            ours = self._group is not None and mesh == self._group[0]
            told = torch.tensor([float(failed)], dtype=torch.float64, device=values.device)
            told = torch.cat([told, values.to(torch.float64)]) if ours else told
            flag, *found = self._sum(mesh, told)
            failed = flag > 0
            sums = found if ours else sums
        return failed, sums

    def _plain_trouble(self) -> str | None:
        """Of parameters that are no DTensors, on this rank."""
        for index in sorted(set(range(len(self._params))) - set(self.indices)):
            grad = self._params[index].grad
            if grad is None or grad.layout is not torch.strided:
                continue
            text = self._norm_trouble(index, _norm(grad).item() ** 2)
            if text is not None:
                return text
        return None

    def _flags(self, index: int, found: dict[int, torch.Tensor]) -> list[float]:
        p: Any = self._params[index]
        flags = [0.0] * _FLAGS
        if p.grad is None:
            flags[_ABSENT if local(p).numel() > 0 else _NOT_NEEDED] = 1
        elif not is_dtensor(p.grad) or p.grad.device_mesh != p.device_mesh:
            flags[_FOREIGN] = 1
        elif p.grad.placements != p.placements:
            flags[_MOVED] = 1
        else:
            found[index] = local(p.grad)
            flags[_PRESENT] = 1
        return flags

    def _squares(
        self, members: list[int], found: dict[int, torch.Tensor], measure: Measure | None
    ) -> torch.Tensor:
        nothing = torch.zeros((), dtype=torch.float64, device=self._params[members[0]].device)
        norms = [_norm(found[index]) if index in found else nothing for index in members]
        squares = torch.stack(norms).square()
        return squares if measure is None else torch.cat([squares, measure(found)])

    def _trouble(self, index: int, row: list[float]) -> str | None:
        """From what all ranks of a mesh have told: the same text on each of them."""
        name = self._names[index]
        if row[_FOREIGN]:
            return (
                f"gradient of '{name}' is not a DTensor on the mesh of its parameter; nothing was "
                "changed; make it one with DTensor.from_local"
            )
        if row[_PRESENT] and row[_MOVED]:
            return (
                f"gradient of '{name}' is placed differently on different ranks; nothing was "
                "changed; redistribute it to the placements of its parameter"
            )
        given = row[_PRESENT] + row[_MOVED]
        missing = row[_ABSENT] + (row[_NOT_NEEDED] if row[_MOVED] else 0)
        if given and missing:
            return _engine.missing_gradient_text(name, given, missing)
        return None

    def _norm_trouble(self, index: int, squares: float) -> str | None:
        if _engine.finite_gradient(squares, self._limits[index]):
            return None
        what = "holds NaN or Inf"
        if math.isfinite(squares):
            what = f"has norm {math.sqrt(squares):.3g}, too large for fp32 state"
        return (
            f"gradient of '{self._names[index]}' {what}; nothing was changed on any rank; lower "
            "the rate or the loss scale"
        )


def _can_move(row: list[float]) -> bool:
    """Whether every rank has a gradient to redistribute: it takes all of them."""
    return bool(row[_MOVED]) and not any(row[:_MOVED]) and not row[_FOREIGN]


def make_agreement(
    groups: list[dict[str, Any]],
    methods: list[Method],
    names: list[str],
    group: tuple[Any, Any] | None = None,
) -> Agreement | None:
    """None where no parameter is a DTensor."""
    planned = _planned(groups, methods, names)
    if not planned:
        return None
    params = [p for each in groups for p in each["params"]]
    return Agreement(params, names, [planned[name].most_gg for name in names], group)
