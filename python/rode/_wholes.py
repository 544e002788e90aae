# SPDX-License-Identifier: Apache-2.0
"""DTensors whose rule needs the whole: matrices of FSDP2 and tensor parallelism. Each has an owner
among the ranks of the mesh, which gets its shards, steps it and sends the shards back."""

import importlib
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from rode import _engine
from rode._binding import Binding, _increment_version, is_capturing
from rode._checks import names_of
from rode._engine import Error
from rode._pieces import Piece
from rode._ranks import Ranks
from rode._shards import Agreement, is_dtensor, local, make_agreement, whole_names
from rode._share import difference, facts_of
from rode._stored_state import TYPE_NAMES

# Pieces of messages begin where any element type may.
_ALIGNMENT = 16
# Of a rank's part: the first index and the extent in every dimension.
Region = tuple[tuple[int, int], ...]


def _padded(size: int) -> int:
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _locate() -> Any:
    """Torch's own function for it, which has moved between releases."""
    for name in ("torch.distributed.tensor._utils", "torch.distributed._tensor._utils"):
        with suppress(ImportError, AttributeError):
            return importlib.import_module(name).compute_local_shape_and_global_offset
    raise Error(
        f"[parameters] PyTorch {torch.__version__} does not tell where a part of a DTensor lies, "
        "which matrices need; use 2.13, with which this is tested"
    )


def _region(p: Any) -> Region:
    """Where this rank's part lies in the whole."""
    shape, offset = _locate()(p.shape, p.device_mesh, p.placements)
    return tuple(zip(offset, shape, strict=True))


def _count(region: Region) -> int:
    size = 1
    for _, extent in region:
        size *= extent
    return size


def _slices(region: Region) -> tuple[slice, ...]:
    return tuple(slice(first, first + extent) for first, extent in region)


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.detach().contiguous().reshape(-1).view(torch.uint8)


class Wholes:
    """What this rank owns of the DTensors that are stepped as wholes, and the steps."""

    def __init__(self, optimizer: Any, names: set[str]) -> None:
        groups = optimizer.param_groups
        self.params = [p for group in groups for p in group["params"]]
        self.names = names_of(groups)
        self._index = {id(p): i for i, p in enumerate(self.params)}
        indices = [i for i, name in enumerate(self.names) if name in names]
        self.ranks = Ranks(_group([(self.names[i], self.params[i]) for i in indices]))
        self._items: list[_engine.ItemRow] = []
        labels, own = iter(self.names), iter(self.params)
        for group in groups:
            transposed = group["layout"] == "in_out"
            specs = [
                (None, next(labels), 0, list(p.shape), TYPE_NAMES[p.dtype], transposed)
                for p in (next(own) for _ in group["params"])
            ]
            rows = _engine.shard_items((*optimizer._method(group), specs))
            self._items += [(row[0], row[1], 0, *row[3:]) for row in rows if row[0] in names]
        self.plan = _engine.plan_shards(self._items, self.ranks.size, 0, 1 << 62)
        by_name = {name: i for i, name in enumerate(self.names)}
        self._owners = {by_name[self._items[item][0]]: rank for item, rank, *_ in self.plan.pieces}
        self._compare(optimizer, indices)
        self._agreement: Agreement | None = None
        self._buffers: dict[int, torch.Tensor] = {}  # whole weights of this rank's matrices
        self._filled = False

    @property
    def refused(self) -> int:
        return 0 if self._agreement is None else self._agreement.refused

    def _compare(self, optimizer: Any, indices: list[int]) -> None:
        """Every rank tells what it has, and where its parts lie."""
        own = [_region(self.params[i]) for i in indices]
        texts = [
            f"'{name}' {TYPE_NAMES[p.dtype]} {tuple(p.shape)}"
            for name, p in zip(self.names, self.params, strict=True)
        ]
        told = self.ranks.tell({**facts_of(optimizer, texts, self.plan), "regions": own})
        text = difference(told)
        if text:
            raise Error(f"[parameters] {text}")
        # By parameter and rank; the same part on several ranks is sent by the first of them.
        self._regions: dict[int, list[Region]] = {}
        self._senders: dict[int, list[int]] = {}
        for position, index in enumerate(indices):
            rows = [facts["regions"][position] for facts in told]
            regions = [tuple((first, extent) for first, extent in row) for row in rows]
            senders = [r for r, region in enumerate(regions) if region not in regions[:r]]
            if sum(_count(regions[r]) for r in senders) != self.params[index].numel():
                raise Error(
                    f"[parameters] parameter '{self.names[index]}' is placed as "
                    f"{self.params[index].placements}, whose parts do not make up the whole; use "
                    "Shard or Replicate"
                )
            self._regions[index], self._senders[index] = regions, senders

    # ---- For the engine ---------------------------------------------------------------------

    def is_whole(self, p: torch.Tensor) -> bool:
        return self._index.get(id(p)) in self._owners

    def follow(self, optimizer: Any) -> None:
        """Before an engine is made."""
        self.before_load(optimizer, [])
        # Its limits follow the options.
        methods = [optimizer._method(group) for group in optimizer.param_groups]
        refused = self.refused
        self._agreement = make_agreement(optimizer.param_groups, methods, self.names)
        assert self._agreement is not None  # there are DTensors
        self._agreement.refused = refused
        if not self._filled:
            self._fill()
            self._filled = True

    def before_load(self, optimizer: Any, given: list[dict[str, Any]]) -> None:
        if not self.follows(optimizer.param_groups):
            raise Error(
                "[parameters] parameters have been added or replaced since the matrices among the "
                "DTensors were dealt out to the ranks; make a new optimizer"
            )

    def after_load(self, state: bool) -> None:
        self._filled = False  # the weights may have been loaded too

    def follows(self, groups: list[dict[str, Any]]) -> bool:
        now = [p for group in groups for p in group["params"]]
        return len(now) == len(self.params) and all(a is b for a, b in zip(now, self.params))

    def _mine(self, index: int) -> bool:
        return self._owners.get(index, self.ranks.rank) == self.ranks.rank

    def groups(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without the matrices of other owners."""
        out, index = [], 0
        for group in groups:
            mine = [i for i in range(index, index + len(group["params"])) if self._mine(i)]
            index += len(group["params"])
            names = [self.names[i] for i in mine]
            out.append({**group, "params": [self.params[i] for i in mine], "param_names": names})
        return out

    def shape(self, p: torch.Tensor) -> list[int]:
        return list(p.shape)

    def local(self, p: torch.Tensor) -> torch.Tensor:
        """What this rank steps: of a matrix that it owns a buffer for the whole."""
        index = self._index[id(p)]
        if index not in self._owners:
            return local(p)
        return self._buffers[index]

    def _fill(self) -> None:
        """The weights of this rank's matrices, before there is an engine, which may look at them.
        A call of all ranks."""
        for index in self._owners:
            if self._mine(index):
                p = self.params[index]
                self._buffers[index] = torch.zeros(p.shape, dtype=p.dtype, device=p.device)
        into = {index: [self._buffers.get(index)] for index in self._owners}
        self._to_owners({i: [local(self.params[i])] for i in self._owners}, into)

    # ---- Steps ------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, optimizer: Any) -> None:
        binding: Binding = optimizer._ready()
        if is_capturing(binding.device):
            raise Error(
                "[capture] the ranks agree on every step of DTensors, which a CUDA graph cannot "
                "hold; step outside of the capture"
            )
        assert self._agreement is not None
        parts = self._agreement.gradients(optimizer._on_non_finite == "skip")
        active = sorted(self._agreement.active & self._owners.keys())
        wholes = self._collect(parts, active) if active else {}
        given = {}
        for position, p in enumerate(binding.params):
            index = self._index[id(p)]
            grad = wholes.get(index) if index in self._owners else parts.get(index)
            if grad is not None:
                given[position] = grad
        error: Exception | None = None
        try:
            binding.step_parts(given, [])
        except Exception as found:
            error = found
        # On CUDA a step is only enqueued: nothing is known yet.
        known = self.params[0].device.type == "cpu"
        failed = known and self._agreement.any_failed(error is not None)
        if active:  # by all ranks, or the others would wait
            self._return(active)
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

    def _collect(
        self, parts: dict[int, torch.Tensor], active: list[int]
    ) -> dict[int, torch.Tensor]:
        """Weights to their owners' buffers; returns the whole gradients of this rank's."""
        sent: dict[int, list[torch.Tensor]] = {}
        into: dict[int, list[torch.Tensor | None]] = {}
        for index in active:
            p = self.params[index]
            grad = parts.get(index, local(p))  # a rank without elements may have no gradient
            if grad.dtype != p.dtype:
                raise Error(
                    f"[step] gradient of '{self.names[index]}' is {grad.dtype}, its DTensor "
                    f"{p.dtype}; a matrix that is stepped as a whole needs the same type"
                )
            sent[index] = [local(p), grad]
            into[index] = [None, None]
            if self._mine(index):
                into[index] = [self._buffers[index], torch.empty_like(self._buffers[index])]
        self._to_owners(sent, into)
        return {index: pair[1] for index, pair in into.items() if pair[1] is not None}

    def _to_owners(
        self, sent: dict[int, list[torch.Tensor]], into: dict[int, list[torch.Tensor | None]]
    ) -> None:
        """Parts of this rank to the owners, and those of all ranks into this rank's wholes."""
        me, size = self.ranks.rank, self.ranks.size
        messages: list[list[torch.Tensor]] = [[] for _ in range(size)]
        for index in sorted(sent):
            if me in self._senders[index]:
                messages[self._owners[index]] += map(_bytes, sent[index])
        places: list[list[torch.Tensor]] = [[] for _ in range(size)]
        for rank in range(size):
            for index in sorted(into):
                if self._owners[index] == me and rank in self._senders[index]:
                    part = _slices(self._regions[index][rank])
                    places[rank] += [whole[part] for whole in into[index] if whole is not None]
        self._exchange(messages, places)

    def _return(self, indices: list[int]) -> None:
        """The weights of this rank's matrices to all that have a part of them."""
        me, size = self.ranks.rank, self.ranks.size
        messages: list[list[torch.Tensor]] = [[] for _ in range(size)]
        places: list[list[torch.Tensor]] = [[] for _ in range(size)]
        for index in indices:
            for rank in range(size):
                if self._owners[index] == me:
                    part = _slices(self._regions[index][rank])
                    messages[rank].append(_bytes(self._buffers[index][part]))
            places[self._owners[index]].append(local(self.params[index]).detach())
        self._exchange(messages, places)
        _increment_version([self.params[index] for index in indices])

    def _exchange(
        self, messages: list[list[torch.Tensor]], places: list[list[torch.Tensor]]
    ) -> None:
        """Bytes to every rank, and from every rank into tensors."""
        device = self.params[0].device
        sizes = [sum(_padded(len(part)) for part in message) for message in messages]
        send = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
        at = 0
        for part in (part for message in messages for part in message):
            send[at : at + len(part)] = part
            at += _padded(len(part))
        expected = [sum(_padded(t.numel() * t.element_size()) for t in row) for row in places]
        received = self.ranks.exchange(send, sizes, expected).to(device)
        at = 0
        for place in (place for row in places for place in row):
            size = place.numel() * place.element_size()
            place.copy_(received[at : at + size].view(place.dtype).view(place.shape))
            at += _padded(size)

    # ---- State ------------------------------------------------------------------------------

    def cut(self, index: int, entries: dict[str, Any]) -> dict[str, Any] | None:
        return entries if self._mine(index) else None

    def tells(self, index: int) -> bool:
        return self._mine(index) if index in self._owners else self.ranks.rank == 0

    def pieces_of(self, index: int) -> list[Piece]:
        rank = self._owners.get(index, 0)
        return [Piece(index, rank, 0, self.params[index].numel(), True, 0)]


def _group(named: list[tuple[str, Any]]) -> Any:
    """The process group of the mesh that all these DTensors are on."""
    name, first = named[0]
    mesh = first.device_mesh
    for other, p in named:
        if p.device_mesh != mesh:
            raise Error(
                f"[parameters] matrices '{name}' and '{other}' are DTensors on different meshes; "
                "make one optimizer for each mesh"
            )
    if mesh.get_coordinate() is None:
        raise Error(
            f"[parameters] matrix '{name}' is a DTensor on {mesh}, which this process is no part "
            "of; make its optimizer on the processes of the mesh alone"
        )
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.size() == dist.get_world_size():
        return dist.group.WORLD
    raise Error(
        f"[parameters] matrix '{name}' is a DTensor on {mesh}, of several dimensions and a part of "
        "all processes; use a mesh of one dimension, or of all processes"
    )


def make_wholes(optimizer: Any) -> Wholes | None:
    """None where no DTensor needs it."""
    groups = optimizer.param_groups
    if not any(is_dtensor(p) for group in groups for p in group["params"]):
        return None
    methods = [optimizer._method(group) for group in groups]
    names = whole_names(groups, methods, names_of(groups))
    return Wholes(optimizer, names) if names else None
