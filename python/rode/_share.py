# SPDX-License-Identifier: Apache-2.0
"""Data parallelism: which parameters this process steps and keeps state for."""

import math
from contextlib import suppress
from operator import is_
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from rode import _engine
from rode._checks import check_parameter, names_of
from rode._engine import Error
from rode._pieces import Piece, cut
from rode._ranks import Ranks
from rode._shards import is_dtensor
from rode._stored_state import TYPE_NAMES, began_at_zero

# Before the pieces of a message: whether its sender's step failed.
_HEADER = 16
# Longer messages are cut, so that less memory is needed at a time; three at most.
_SHORT_MESSAGE = 64 << 20
# Options that decide which tensors may be divided, for messages.
_PLANNED = ("rounding", "state_dtype", "state_rounding")
# Facts that are compared across ranks, and what to do where they differ.
_COMPARED = {
    "version": "install one version of rode everywhere",
    "optimizer": "give every rank the same optimizer",
    "on_non_finite": "give every rank the same options",
    "options": "give every rank the same options",
    "parameters": "build the same model on every rank, and its optimizer after moves and casts",
    "plan": "report this: ranks with the same parameters have made different plans",
}


def _mark_agreed(error: Exception) -> None:
    """All ranks raise this error now: none of them waits for it."""
    error.agreed = True  # type: ignore[attr-defined]


def _form(p: torch.Tensor) -> tuple[Any, ...]:
    return tuple(p.shape), p.dtype, p.is_contiguous(), p.device


class Share:
    """What this rank has of an optimizer's parameters."""

    # Whether a rank's state dict holds what no other rank has.
    keeps_own = True
    diagnostics: dict[str, dict[str, float]] = {}  # besides the engine's

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.plan: _engine.ShardPlan | None = None
        self.params: list[torch.Tensor] = []  # of all groups, on every rank the same
        # Whether there is state by this plan. Not a look at this rank's: it may own nothing.
        self._begun = False

    # ---- The plan ---------------------------------------------------------------------------

    def report(self, error: Exception) -> None:
        """Reports to the others that this rank has failed, so that they do not wait for it."""
        self.ranks.tell({"error": f"{type(error).__name__}: {error}"})

    def make(self, optimizer: Any) -> None:
        """Deals out the parameters. A call of all ranks, which ends on all of them or on none."""
        try:
            facts = self._deal(optimizer)
        except Exception as error:
            _mark_agreed(error)
            with suppress(Error):  # of ranks that do not answer: this one says more
                self.report(error)
            raise
        text = difference(self.ranks.tell(facts))
        if text:
            self.plan = None
            refusal = Error(f"[process group] {text}")
            refusal.kind = "process group"
            _mark_agreed(refusal)
            raise refusal

    def follow(self, optimizer: Any) -> None:
        """The plan for the parameters as they are now."""
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if self.plan is not None and len(params) == len(self.params):
            same = all(map(is_, params, self.params))
            if same and list(map(_form, params)) == self._forms:
                self._check_parts(optimizer, optimizer.param_groups)
                return
        if self._begun:
            raise Error(
                "[process group] parameters have been added, moved or cast since their state "
                "was divided between the ranks; save consolidated_state_dict(), make a new "
                "optimizer and load it there"
            )
        optimizer.state.clear()  # of an engine that has made no step, by the plan before
        self.make(optimizer)

    def before_load(self, optimizer: Any, given: list[dict[str, Any]]) -> None:
        """Raises if state with the groups `given` cannot be divided."""
        self.follow(optimizer)
        groups = optimizer.param_groups
        if [len(g["params"]) for g in given] == [len(g["params"]) for g in groups]:
            loaded = zip(groups, given, strict=True)
            as_loaded = [{**own, **row, "params": own["params"]} for own, row in loaded]
            self._check_parts(optimizer, as_loaded)

    def after_load(self, state: bool) -> None:
        """`state`: whether there was any, on whichever rank."""
        self._begun = state

    def _check_parts(self, optimizer: Any, groups: list[dict[str, Any]]) -> None:
        """Raises where options have been set since the deal that a part of a tensor cannot have."""
        indices = iter(range(len(self.params)))
        for group in groups:
            members = {self.names[i]: i for i in (next(indices) for _ in group["params"])}
            group = {**group, "param_names": list(members)}
            if all(piece.whole for i in members.values() for piece in self.pieces_of(i)):
                continue
            for name, _, unit, *_ in _engine.shard_items(self._spec(optimizer, group, members)):
                pieces = [p for p in self.pieces_of(members[name]) if not p.whole]
                width = self.params[members[name]].element_size()
                if all(unit and piece.first * width % unit == 0 for piece in pieces):
                    continue
                keys = [key for key in _PLANNED if group.get(key) is not None]
                options = ", ".join(f"{key}={group[key]!r}" for key in keys)
                raise Error(
                    f"[process group] parameter '{name}' was divided between ranks, which its "
                    f"group's options no longer allow ({options}); set them back, or give them to "
                    "a new optimizer and load consolidated_state_dict() there"
                )

    def _spec(
        self, optimizer: Any, group: dict[str, Any], members: dict[str, int]
    ) -> "_engine.GroupSpec":
        layout = group["layout"]
        rows = [
            (None, name, 0, list(p.shape), TYPE_NAMES[p.dtype], layout)
            for name, p in ((name, self.params[i]) for name, i in members.items())
        ]
        return (*optimizer._method(group), rows)

    def set_limits(self, optimizer: Any) -> None:
        """Of the gradients that a step takes, with an engine there: only then is it known which of
        this rank's matrices began at zero, whose rule takes less. The ranks hear of a gradient that
        one of them refuses."""
        indices = iter(range(len(self.params)))
        for group in optimizer.param_groups:
            members = {self.names[i]: i for i in (next(indices) for _ in group["params"])}
            name, options, route, coupling, rows = self._spec(optimizer, group, members)
            starts = [
                began_at_zero(optimizer.state.get(self.params[i], {})) for i in members.values()
            ]
            known = [(*row[:6], start) for row, start in zip(rows, starts, strict=True)]
            spec = (name, options, route, coupling, known)
            for parameter, _, limit, _ in _engine.planned_gradients(spec):
                self._limits[members[parameter]] = limit

    def _deal(self, optimizer: Any) -> dict[str, Any]:
        groups = optimizer.param_groups
        self.params = [p for group in groups for p in group["params"]]
        self.names = names_of(groups)
        by_name = {name: i for i, name in enumerate(self.names)}
        items: list[_engine.ItemRow] = []
        self._limits = [math.inf] * len(self.params)
        units: dict[int, int] = {}  # elements of a matrix, of batches
        texts = []
        indices = iter(range(len(self.params)))
        for group in groups:
            members = {self.names[i]: i for i in (next(indices) for _ in group["params"])}
            for name, p in ((name, self.params[i]) for name, i in members.items()):
                self._check(name, p)
                shape, kind = tuple(p.shape), TYPE_NAMES[p.dtype]
                texts.append(f"'{name}' {kind} {shape} {group['layout']} {p.is_contiguous()}")
            spec = self._spec(optimizer, group, members)
            for name, size, unit, cost, state in _engine.shard_items(spec):
                parts = unit if self.params[by_name[name]].is_contiguous() else 0
                items.append((name, size, parts, cost, state))
            for name, _, limit, batch in _engine.planned_gradients(spec):
                self._limits[by_name[name]] = limit
                if batch:
                    units[by_name[name]] = self.params[by_name[name]].numel() // batch
        self._forms = list(map(_form, self.params))
        plan = _engine.plan_shards(items, self.ranks.size, _HEADER, _SHORT_MESSAGE)
        self._pieces: list[Piece] = []
        for item, rank, first, size, offset in plan.pieces:
            index = by_name[items[item][0]]
            width = self.params[index].element_size()
            whole = size == items[item][1]
            unit = 0 if whole else units.get(index, 0)
            elements = first // width, size // width
            self._pieces.append(Piece(index, rank, *elements, whole, offset, unit))
        self._by_index: dict[int, list[Piece]] = {}
        for piece in self._pieces:
            self._by_index.setdefault(piece.index, []).append(piece)
        self.own = {piece.index: piece for piece in self._pieces if piece.rank == self.ranks.rank}
        self._views: dict[int, torch.Tensor] = {}  # of this rank's parts of parameters
        self._index = {id(p): i for i, p in enumerate(self.params)}
        self.plan = plan
        return facts_of(optimizer, texts, plan)

    @staticmethod
    def _check(name: str, p: torch.Tensor) -> None:
        if is_lazy(p):
            raise Error(
                f"[process group] parameter '{name}' has no shape yet; run the model once before "
                "its optimizer is made"
            )
        if is_dtensor(p):
            raise Error(
                f"[process group] parameter '{name}' is a DTensor, which has a mesh of its own; "
                "leave process_group out, or give plain tensors"
            )
        check_parameter(name, p)

    def cut(self, index: int, entries: dict[str, Any]) -> dict[str, Any] | None:
        """This rank's part of a parameter's state; None: it has none."""
        piece = self.own.get(index)
        if piece is None or piece.whole:
            return None if piece is None else entries
        # Of a batch, one row for every matrix. Else one entry for every element. The others,
        # counts, are the same everywhere: also that of a batch which began at zero, the rest's.
        p = self.params[index]

        def is_divided(value: Any) -> bool:
            if not isinstance(value, torch.Tensor):
                return False
            if piece.unit and value.dim() > 0 and len(value) == len(p):
                return True
            return value.numel() == p.numel()

        return {
            key: piece.of(value) if is_divided(value) else value for key, value in entries.items()
        }

    def tells(self, index: int) -> bool:
        """Whether what this rank holds of a parameter's state belongs to the whole."""
        return index in self.own

    def pieces_of(self, index: int) -> list[Piece]:
        """In the order of the ranks, which is that of the elements."""
        return self._by_index.get(index, [])

    # ---- This rank's part -------------------------------------------------------------------

    def groups(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The groups with this rank's parameters alone."""
        out, index = [], 0
        for group in groups:
            members = range(index, index + len(group["params"]))
            index = members.stop
            mine = [i for i in members if i in self.own]
            names = [self.names[i] for i in mine]
            out.append({**group, "params": [self.params[i] for i in mine], "param_names": names})
        return out

    def follows(self, groups: list[dict[str, Any]], _: Any) -> bool:
        """Whether these are the parameters that were divided."""
        now = [p for group in groups for p in group["params"]]
        return len(now) == len(self.params) and all(map(is_, now, self.params))

    def shape(self, p: torch.Tensor) -> list[int]:
        """Of what this rank steps of it."""
        piece = self.own.get(self._index[id(p)])
        return list(p.shape) if piece is None else piece.shape(p)

    def first_element(self, p: torch.Tensor) -> int:
        """Of what this rank steps of it."""
        return self.own[self._index[id(p)]].first

    def is_whole(self, p: torch.Tensor) -> bool:
        return False  # there are no DTensors

    def divides(self, p: torch.Tensor) -> bool:
        """Whether this rank steps some of the matrices of a batch."""
        return self.own[self._index[id(p)]].unit != 0

    def held_state(self, p: torch.Tensor, key: str) -> None:
        return None  # it lies in the optimizer's own

    def built(self) -> None:
        pass

    def local(self, p: torch.Tensor) -> torch.Tensor:
        """What this rank steps of one of its parameters: the same tensor every time."""
        piece = self.own[self._index[id(p)]]
        return p if piece.whole else self._part(p, piece)

    def _part(self, p: torch.Tensor, piece: Piece) -> torch.Tensor:
        view = self._views.get(piece.index)
        address = p.data_ptr() + piece.first * p.element_size()
        if view is None:
            view = self._views[piece.index] = cut(p, piece)
        elif view.data_ptr() != address:
            view.data = cut(p, piece)
        return view


def facts_of(optimizer: Any, parameters: list[str], plan: _engine.ShardPlan) -> dict[str, Any]:
    """What a rank sends the others about its optimizer."""
    groups = optimizer.param_groups
    return {
        "version": _engine.version(),
        "optimizer": optimizer._name,
        "on_non_finite": optimizer._on_non_finite,
        "options": [repr(optimizer._method(group)[1:]) for group in groups],
        "parameters": parameters,
        "plan": f"{plan.hash:016x}",
    }


def difference(told: list[dict[str, Any]]) -> str:
    """The first difference between what the ranks sent, as text; empty: none."""
    for rank, facts in enumerate(told):
        if "error" in facts:
            return f"rank {rank} could not make its optimizer: {facts['error']}"
    for key, remedy in _COMPARED.items():
        first = told[0][key]
        for rank, facts in enumerate(told):
            found = facts[key]
            if found == first:
                continue
            if isinstance(found, list):
                if len(found) != len(first):
                    what = "groups" if key == "options" else key
                    return f"rank {rank} has {len(found)} {what}, rank 0 {len(first)}; {remedy}"
                at = next(i for i, row in enumerate(found) if row != first[i])
                found, first = found[at], first[at]
            return f"{key} differ: rank {rank} has {found}, rank 0 has {first}; {remedy}"
    return ""
