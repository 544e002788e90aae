# SPDX-License-Identifier: Apache-2.0
"""State of DTensors that are stepped as wholes: it lies as they do, so that checkpoints see it on
every rank, and with the owner also in buffers, which its engine works on."""

import math
from typing import Any

import torch

from rode._engine import Error
from rode._regions import Regions
from rode._shards import is_dtensor, local, placed, spread
from rode._stored_state import Plan, check_form

# Of fresh state the keys by which a start is known (_stored_state.began_at_zero).
_STARTS: dict[bool, dict[str, Any]] = {True: {"exp_avg": None}, False: {"momentum": None}}


def _is_cut(shape: list[int], dtype: torch.dtype, p: torch.Tensor) -> bool:
    """Whether this entry is placed as the parameter; others, scalars and entries for rows, are
    whole on every rank."""
    return shape == list(p.shape) and dtype is not torch.int64


def _is_small(shape: list[int], p: torch.Tensor) -> bool:
    """What every rank may have: scalars, entries for rows or columns, the scales of int8."""
    count, size = math.prod(shape), p.numel()
    return count <= 1 or count * 128 <= size or count * min(p.shape[-2:], default=1) <= size


def can_place(plan: Plan, p: torch.Tensor) -> bool:
    """Whether all of a parameter's state can lie so. SOAP's factors cannot: their owner keeps
    them."""
    return all(_is_cut(shape, kind, p) or _is_small(shape, p) for shape, kind in plan.values())


class PlacedState:
    def __init__(self, params: list[torch.Tensor], names: list[str], regions: Regions) -> None:
        self._params, self._names, self._regions = params, names, regions
        self.indices: list[int] = []
        self._entries: dict[int, dict[str, Any]] = {}
        self._cuts: dict[int, dict[str, bool]] = {}  # by key, sorted: whether it is cut
        self._buffers: dict[int, dict[str, torch.Tensor]] = {}
        self._held: set[int] = set()  # those of which owners have buffers
        self._kept: set[int] = set()  # those that had state before
        # Made, and not yet filled by an engine: a second try takes them for absent.
        self._unbuilt: set[int] = set()
        self._seen: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self._versions: list[int] = []

    def choose(self, optimizer: Any, indices: list[int]) -> None:
        """Of the wholes, those whose state can lie as they do."""
        plans = self._plans(optimizer, {})
        self.indices = [i for i in indices if can_place(plans[i], self._params[i])]

    def _plans(self, optimizer: Any, starts: dict[int, bool]) -> list[Plan]:
        """By index; `starts`: of fresh state, whether the matrix begins at zero."""
        out: list[Plan] = []
        for group in optimizer.param_groups:
            members = range(len(out), len(out) + len(group["params"]))
            names = [self._names[i] for i in members]
            states = [
                _STARTS[starts[i]] if i in starts else optimizer.state.get(self._params[i], {})
                for i in members
            ]
            plan = optimizer._plan(group, names, states)
            out += [plan[name] for name in names]
        return out

    # ---- Before there is an engine ----------------------------------------------------------

    def is_current(self, state: dict[torch.Tensor, Any]) -> bool:
        """Whether the state is that which was placed last."""
        if len(self._cuts) != len(self.indices) or self._unbuilt:
            return False
        return all(entries.get(key) is held for entries, key, held in self._seen) and all(
            state.get(self._params[i]) is entries for i, entries in self._entries.items()
        )

    def place(self, optimizer: Any) -> None:
        """Makes state of zeros on every rank, or places what is there. A call of all ranks."""
        starts = self._starts(optimizer)
        plans = self._plans(optimizer, starts)
        self._kept = set(self.indices) - starts.keys()
        self._unbuilt = set(starts)
        self._entries, self._seen = {}, []
        for index in self.indices:
            p, plan = self._params[index], plans[index]
            entries = self._entries[index] = optimizer.state[p]
            if index in starts:
                entries.clear()
            cuts = {key: _is_cut(*plan[key], p) for key in sorted(plan)}
            for key, cut in cuts.items():
                entries[key] = self._entry(index, entries, key, plan[key], cut)
                self._seen.append((entries, key, entries[key]))
            self._cuts[index] = cuts

    def hold(self, indices: set[int]) -> None:
        """Of these the owners have buffers."""
        self._held = indices
        self._buffers = {}
        for index in filter(self._regions.owns, indices):
            p, entries = self._params[index], self._entries[index]
            self._buffers[index] = {
                key: torch.zeros(
                    p.shape if cut else entries[key].shape,
                    dtype=entries[key].dtype,
                    device=p.device,
                )
                for key, cut in self._cuts[index].items()
            }

    def _starts(self, optimizer: Any) -> dict[int, bool]:
        """The parameters that no rank has state of, with whether they begin at zero."""
        groups = [group for group in optimizer.param_groups for _ in group["params"]]
        present, squares = [], []
        for index in self.indices:
            p = self._params[index]
            has = bool(optimizer.state.get(p)) and index not in self._unbuilt
            present.append(float(has))
            judged = not has and groups[index].get("on_zero") == "rest"
            counts = judged and self._regions.sends(index)
            norm = torch.linalg.vector_norm(local(p).detach(), dtype=torch.float64) if counts else 0
            squares.append(float(norm) ** 2)
        size = self._regions.ranks.size
        told = self._regions.ranks.sum([*present, *squares])
        out: dict[int, bool] = {}
        for index, count, square in zip(
            self.indices, told[: len(present)], told[len(present) :], strict=True
        ):
            if 0 < count < size:
                raise Error(
                    f"[state] parameter '{self._names[index]}' has state on {count:.0f} of {size} "
                    "ranks; load the same checkpoint on every rank"
                )
            if count == 0:
                rest = groups[index].get("on_zero") == "rest"
                out[index] = rest and math.sqrt(square) <= float(groups[index]["eps"])
        return out

    def _entry(
        self, index: int, entries: dict[str, Any], key: str, form: tuple[Any, Any], cut: bool
    ) -> torch.Tensor:
        name, p = self._names[index], self._params[index]
        (shape, dtype), tensor = form, entries.get(key)
        if tensor is None:
            if index in self._kept:
                raise Error(
                    f"[state] parameter '{name}' has state {sorted(entries)}, but no '{key}'; it "
                    "belongs to another optimizer or other options"
                )
            if cut:
                part = torch.zeros(local(p).shape, dtype=dtype, device=p.device)
                return spread(part, p)
            return torch.zeros(shape, dtype=dtype, device=p.device)
        check_form(name, key, tensor, shape, dtype)
        if cut:
            return placed(tensor.to(p.device), p)
        whole: torch.Tensor = tensor.full_tensor() if is_dtensor(tensor) else tensor
        return whole.to(p.device).contiguous()

    def memory(self, index: int, key: str) -> tuple[torch.Tensor, bool]:
        """For the owner's engine: the buffer, and whether it holds state of an earlier one."""
        return self._buffers[index][key], index in self._kept

    def built(self) -> set[int]:
        """There is an engine: those that it may have given first values, such as radii."""
        made = self._unbuilt & self._held
        self._kept |= self._unbuilt
        self._unbuilt = set()
        return made

    # ---- Messages ---------------------------------------------------------------------------

    def changed(self) -> bool:
        """Whether a program has written into this rank's state since the last step."""
        return self._versions != self._now()

    def note(self) -> None:
        self._versions = self._now()

    def _now(self) -> list[int]:
        return [local(held)._version for _, _, held in self._seen]

    def gather(self, indices: set[int], parts: dict[int, Any], wholes: dict[int, Any]) -> None:
        """Adds to messages to the owners what is cut of these, and takes what is not; nothing of
        fresh state."""
        indices = indices & self._held & self._kept
        for index in indices & self._buffers.keys():
            for key, cut in self._cuts[index].items():
                if not cut:
                    self._buffers[index][key].copy_(self._entries[index][key])
        for index in indices:
            keys = [key for key, cut in self._cuts[index].items() if cut]
            parts[index] += [local(self._entries[index][key]) for key in keys]
            if index in wholes:
                wholes[index] += [self._buffers[index][key] for key in keys]

    def give(
        self,
        indices: set[int],
        wholes: dict[int, list[tuple[torch.Tensor, bool]]],
        parts: dict[int, list[torch.Tensor]],
    ) -> None:
        """Adds to messages from the owners the state of these."""
        for index in indices & self._held:
            cuts = self._cuts[index]
            if self._regions.owns(index):
                wholes[index] += [(self._buffers[index][key], cut) for key, cut in cuts.items()]
            parts[index] += [local(self._entries[index][key]) for key in cuts]
