# SPDX-License-Identifier: Apache-2.0
"""DTensors whose rule needs the whole: matrices of FSDP2 and tensor parallelism. Each has an owner
among the ranks of the mesh, which gets its shards, steps it and sends the shards back."""

from typing import Any

import torch

from rode import _engine
from rode._binding import Binding, _increment_version, is_capturing
from rode._checks import names_of
from rode._engine import Error
from rode._parted import Parted
from rode._pieces import Piece
from rode._placed_state import PlacedState
from rode._ranks import Ranks
from rode._regions import Regions, group_of, region_of
from rode._shards import Agreement, first_element, is_dtensor, local, make_agreement, whole_names
from rode._share import difference, facts_of
from rode._stored_state import TYPE_NAMES


class Wholes:
    """What this rank owns of the DTensors that are stepped as wholes, and the steps."""

    def __init__(self, optimizer: Any, names: set[str]) -> None:
        groups = optimizer.param_groups
        self.params = [p for group in groups for p in group["params"]]
        self.names = names_of(groups)
        self._index = {id(p): i for i, p in enumerate(self.params)}
        indices = [i for i, name in enumerate(self.names) if name in names]
        group = group_of((self.names[i], self.params[i]) for i in indices)
        self.ranks = Ranks(group)
        mesh: Any = self.params[indices[0]]
        self._mesh_group = mesh.device_mesh, group
        self._items: list[_engine.ItemRow] = []
        labels, own = iter(self.names), iter(self.params)
        for each in groups:
            layout = each["layout"]
            specs = [
                (None, next(labels), 0, list(p.shape), TYPE_NAMES[p.dtype], layout)
                for p in (next(own) for _ in each["params"])
            ]
            rows = _engine.shard_items((*optimizer._method(each), specs))
            self._items += [(row[0], row[1], 0, *row[3:]) for row in rows if row[0] in names]
        self.plan = _engine.plan_shards(self._items, self.ranks.size, 0, 1 << 62)
        self._regions = Regions(self.ranks, self.params[0].device)
        self._compare(optimizer, indices)
        self._agreement: Agreement | None = None
        self._buffers: dict[int, torch.Tensor] = {}  # whole weights of this rank's matrices
        self._state = PlacedState(self.params, self.names, self._regions)
        self._state.choose(optimizer, indices)
        self._placed = set(self._state.indices)
        self._parted = Parted(self.params, self.names, self._regions)
        self.keeps_own = len(self._placed) < len(indices)
        self._filled = False

    @property
    def refused(self) -> int:
        return 0 if self._agreement is None else self._agreement.refused

    def _compare(self, optimizer: Any, indices: list[int]) -> None:
        """Every rank sends what it has, and where its parts are."""
        own = [region_of(self.params[i]) for i in indices]
        texts = [
            f"'{name}' {TYPE_NAMES[p.dtype]} {tuple(p.shape)}"
            for name, p in zip(self.names, self.params, strict=True)
        ]
        told = self.ranks.tell({**facts_of(optimizer, texts, self.plan), "regions": own})
        text = difference(told)
        if text:
            raise Error(f"[parameters] {text}")
        owners = {self._items[item][0]: rank for item, rank, *_ in self.plan.pieces}
        for position, index in enumerate(indices):
            name, rows = (self.names[index], [facts["regions"][position] for facts in told])
            self._regions.add(index, name, self.params[index], owners[name], rows)

    # ---- For the engine ---------------------------------------------------------------------

    def divides(self, p: torch.Tensor) -> bool:
        return False  # a batch that lies on several ranks is a DTensor

    def is_whole(self, p: torch.Tensor) -> bool:
        return self._index.get(id(p)) in self._regions.owners

    def follow(self, optimizer: Any) -> None:
        """Before an engine is made."""
        self.before_load(optimizer, [])
        # Its limits follow the options.
        methods = [optimizer._method(group) for group in optimizer.param_groups]
        refused = self.refused
        self._agreement = make_agreement(
            optimizer.param_groups, methods, self.names, self._mesh_group
        )
        assert self._agreement is not None  # there are DTensors
        self._agreement.refused = refused
        optimizer._adopt_state(self.shape)
        current = self._filled and self._state.is_current(optimizer.state)
        if not current:
            self._state.place(optimizer)
        others = self._parted.follow(optimizer, self._placed)
        if current and not others:
            return
        self._state.hold(self._placed - self._parted.matrices.keys())
        self._fill()
        self._filled = True

    def before_load(self, optimizer: Any, given: list[dict[str, Any]]) -> None:
        if not self._same_params(optimizer.param_groups):
            raise Error(
                "[parameters] parameters have been added or replaced since the matrices among "
                "the DTensors were divided between the ranks; make a new optimizer"
            )

    def after_load(self, state: bool) -> None:
        self._filled = False  # the weights may have been loaded too

    def _same_params(self, groups: list[dict[str, Any]]) -> bool:
        now = [p for group in groups for p in group["params"]]
        return len(now) == len(self.params) and all(a is b for a, b in zip(now, self.params))

    def follows(self, groups: list[dict[str, Any]], state: dict[torch.Tensor, Any]) -> bool:
        return self._same_params(groups) and self._state.is_current(state)

    def _mine(self, index: int) -> bool:
        return index not in self._regions.owners or self._regions.owns(index)

    def groups(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without the matrices of other owners, and those that are stepped in parts."""
        out, index = [], 0
        for group in groups:
            members = range(index, index + len(group["params"]))
            mine = [i for i in members if self._mine(i) and i not in self._parted.matrices]
            index = members.stop
            names = [self.names[i] for i in mine]
            out.append({**group, "params": [self.params[i] for i in mine], "param_names": names})
        return out

    def shape(self, p: torch.Tensor) -> list[int]:
        return list(p.shape)

    def local(self, p: torch.Tensor) -> torch.Tensor:
        """What this rank steps: of a matrix that it owns a buffer for the whole."""
        index = self._index[id(p)]
        return self._buffers[index] if index in self._regions.owners else local(p)

    def first_element(self, p: torch.Tensor) -> int:
        return 0 if self.is_whole(p) else first_element(p)

    def held_state(self, p: torch.Tensor, key: str) -> tuple[torch.Tensor, bool] | None:
        """Of state that is placed as its parameter: the owner's buffer, and whether it holds state
        of an earlier engine."""
        index = self._index[id(p)]
        return self._state.memory(index, key) if index in self._placed else None

    def built(self) -> None:
        """There is an engine, which may have given fresh state first values, such as radii. A call
        of all ranks."""
        made = self._state.built()
        if made:
            self._return(made, weights=False)
            self._state.note()

    def _fill(self) -> None:
        """The weights of this rank's matrices, and their state, before there is an engine, which
        may look at them. A call of all ranks."""
        indices = self._regions.owners.keys() - self._parted.matrices.keys()
        mine = list(filter(self._regions.owns, indices))
        self._buffers = {i: buffer for i, buffer in self._buffers.items() if i in mine}
        for index in mine:
            p = self.params[index]
            if index not in self._buffers:
                self._buffers[index] = torch.zeros(p.shape, dtype=p.dtype, device=p.device)
        parts = {i: [local(self.params[i])] for i in indices}
        wholes = {i: [buffer] for i, buffer in self._buffers.items()}
        self._state.gather(self._placed, parts, wholes)
        self._regions.to_owners(parts, wholes)
        self._state.note()

    # ---- Steps ------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, optimizer: Any) -> None:
        binding: Binding = optimizer._ready()
        if is_capturing(binding.device):
            raise Error(
                "[capture] the ranks agree on every step of DTensors, which a CUDA graph cannot "
                "hold; step outside of the capture"
            )
        agreement, parted = self._agreement, self._parted
        assert agreement is not None
        skip = optimizer._on_non_finite == "skip"
        grads = agreement.gradients(skip, self._state.changed(), parted.measure)
        active = agreement.active & self._regions.owners.keys()
        in_parts = active & parted.matrices.keys()
        given = self._send(optimizer, grads, active - in_parts, in_parts)
        error: Exception | None = None
        try:
            binding.step_parts(self._bound_to(binding, grads, given), [])
        except Exception as found:
            error = found
        if in_parts:
            parted.condition()
        if active:  # by all ranks, or the others would wait
            self._return(active - in_parts, in_parts=bool(in_parts))
        failed, sums = False, list[float]()
        # On CUDA a step is only enqueued: nothing is known yet.
        if in_parts or self.params[0].device.type == "cpu":
            failed, sums = agreement.outcome(error is not None, parted.measure_directions())
        if in_parts:
            parted.write(sums)
        self._state.note()
        if error is not None:
            if self.ranks.size > 1 and isinstance(error, Error):
                error.changed = True  # on the others
            raise error
        if failed:
            failure = Error(
                "[step] the step failed on another rank, but was made on this one; restore a "
                "checkpoint on every rank; see the error of that rank"
            )
            failure.changed = True
            raise failure

    def _bound_to(
        self, binding: Binding, grads: dict[int, torch.Tensor], wholes: dict[int, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """What the engine steps with, by its own count."""
        out = {}
        for position, p in enumerate(binding.params):
            index = self._index[id(p)]
            own = wholes if index in self._regions.owners else grads
            if index in own:
                out[position] = own[index]
        return out

    def _send(
        self, optimizer: Any, grads: dict[int, torch.Tensor], whole: set[int], in_parts: set[int]
    ) -> dict[int, torch.Tensor]:
        """To the owners: weights and gradients, and state where a program has changed it; of
        matrices in parts their starts. Returns the whole gradients of this rank's."""
        parts: dict[int, list[torch.Tensor]] = {}
        wholes: dict[int, list[torch.Tensor]] = {}
        for index in whole:
            p = self.params[index]
            grad = grads.get(index, local(p))  # a rank without elements may have no gradient
            if grad.dtype != p.dtype:
                raise Error(
                    f"[step] gradient of '{self.names[index]}' is {grad.dtype}, its DTensor "
                    f"{p.dtype}; a matrix that is stepped as a whole needs the same type"
                )
            parts[index] = [local(p), grad]
            if self._regions.owns(index):
                wholes[index] = [self._buffers[index], torch.empty_like(self._buffers[index])]
        out = {index: pair[1] for index, pair in wholes.items()}
        assert self._agreement is not None
        if self._agreement.marked:
            self._state.gather(whole, parts, wholes)
        self._parted.form(optimizer, self._agreement.measured, in_parts, grads, parts, wholes)
        if whole or in_parts:
            self._regions.to_owners(parts, wholes)
        return out

    def _return(self, indices: set[int], weights: bool = True, in_parts: bool = False) -> None:
        """State and weights of this rank's matrices to all that have a part of them; with
        `in_parts` directions, too."""
        wholes: dict[int, list[tuple[torch.Tensor, bool]]] = {}
        parts: dict[int, list[torch.Tensor]] = {}
        for index in indices:
            parts[index] = [local(self.params[index]).detach()] if weights else []
            if self._regions.owns(index):
                wholes[index] = [(self._buffers[index], True)] if weights else []
        self._state.give(indices, wholes, parts)
        if in_parts:
            self._parted.give(wholes, parts)
        self._regions.from_owners(wholes, parts)
        if weights:
            _increment_version([self.params[index] for index in sorted(indices)])

    # ---- State ------------------------------------------------------------------------------

    @property
    def diagnostics(self) -> dict[str, dict[str, float]]:
        """RODE's, of matrices that are stepped in parts: the same on every rank."""
        return self._parted.diagnostics

    def cut(self, index: int, entries: dict[str, Any]) -> dict[str, Any] | None:
        return entries if index in self._placed or self._mine(index) else None

    def tells(self, index: int) -> bool:
        return self.ranks.rank == self._regions.owners.get(index, 0)

    def pieces_of(self, index: int) -> list[Piece]:
        rank = self._regions.owners.get(index, 0)
        return [Piece(index, rank, 0, self.params[index].numel(), True, 0)]


def make_wholes(optimizer: Any) -> Wholes | None:
    """None where no DTensor needs it."""
    groups = optimizer.param_groups
    if not any(is_dtensor(p) for group in groups for p in group["params"]):
        return None
    methods = [optimizer._method(group) for group in groups]
    names = whole_names(groups, methods, names_of(groups))
    return Wholes(optimizer, names) if names else None
