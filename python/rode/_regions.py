# SPDX-License-Identifier: Apache-2.0
"""Where the parts of DTensors lie on the ranks of a mesh, and messages between the parts and the
owners of the wholes."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from rode._engine import Error
from rode._ranks import Ranks
from rode._shards import locate

# Pieces of messages begin where any element type may.
_ALIGNMENT = 16
# Of a rank's part: the first index and the extent in every dimension.
Region = tuple[tuple[int, int], ...]


def _padded(size: int) -> int:
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def region_of(p: Any) -> Region:
    """The place of this rank's part in the whole."""
    shape, offset = locate(p)
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


class Regions:
    """By parameter, as an index: its parts by rank, who sends each, and who owns the whole."""

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self.ranks, self._device = ranks, device
        self.owners: dict[int, int] = {}
        self._regions: dict[int, list[Region]] = {}
        # The same part on several ranks is sent by the first of them.
        self._senders: dict[int, list[int]] = {}

    def add(self, index: int, name: str, p: Any, owner: int, rows: list[Any]) -> None:
        """`rows`: the regions of all ranks, as they have sent them."""
        regions = [tuple((first, extent) for first, extent in row) for row in rows]
        senders = [r for r, region in enumerate(regions) if region not in regions[:r]]
        if sum(_count(regions[r]) for r in senders) != p.numel():
            raise Error(
                f"[parameters] parameter '{name}' is placed as {p.placements}, whose parts do not "
                "make up the whole; use Shard or Replicate"
            )
        self.owners[index] = owner
        self._regions[index], self._senders[index] = regions, senders

    def owns(self, index: int) -> bool:
        return self.owners.get(index) == self.ranks.rank

    def sends(self, index: int) -> bool:
        """Whether this rank's part counts: each part does so once."""
        return self.ranks.rank in self._senders[index]

    def to_owners(
        self, parts: dict[int, list[torch.Tensor]], wholes: dict[int, list[torch.Tensor]]
    ) -> None:
        """Parts of this rank to the owners, and those of all ranks into the wholes of this one.
        `wholes` has the parameters that this rank owns among those of `parts`."""
        me, size = self.ranks.rank, self.ranks.size
        messages: list[list[torch.Tensor]] = [[] for _ in range(size)]
        places: list[list[torch.Tensor]] = [[] for _ in range(size)]
        for index in sorted(parts):
            if me in self._senders[index]:
                messages[self.owners[index]] += map(_bytes, parts[index])
            for rank in self._senders[index] if self.owns(index) else ():
                region = _slices(self._regions[index][rank])
                places[rank] += [whole[region] for whole in wholes[index]]
        self._exchange(messages, places)

    def from_owners(
        self,
        wholes: dict[int, list[tuple[torch.Tensor, bool]]],
        parts: dict[int, list[torch.Tensor]],
    ) -> None:
        """The other way, to all ranks. With a whole: whether it is cut as the parameter is; if not,
        every rank gets all of it."""
        size = self.ranks.size
        messages: list[list[torch.Tensor]] = [[] for _ in range(size)]
        places: list[list[torch.Tensor]] = [[] for _ in range(size)]
        for index in sorted(parts):
            for rank in range(size) if self.owns(index) else ():
                region = _slices(self._regions[index][rank])
                given = wholes[index]
                messages[rank] += [_bytes(whole[region] if cut else whole) for whole, cut in given]
            places[self.owners[index]] += parts[index]
        self._exchange(messages, places)

    def _exchange(
        self, messages: list[list[torch.Tensor]], places: list[list[torch.Tensor]]
    ) -> None:
        """Bytes to every rank, and from every rank into tensors."""
        sizes = [sum(_padded(len(part)) for part in message) for message in messages]
        send = torch.zeros(sum(sizes), dtype=torch.uint8, device=self._device)
        at = 0
        for part in (part for message in messages for part in message):
            send[at : at + len(part)] = part
            at += _padded(len(part))
        expected = [sum(_padded(t.numel() * t.element_size()) for t in row) for row in places]
        received = self.ranks.exchange(send, sizes, expected).to(self._device)
        at = 0
        for place in (place for row in places for place in row):
            size = place.numel() * place.element_size()
            place.copy_(received[at : at + size].view(place.dtype).view(place.shape))
            at += _padded(size)


def group_of(named: Iterable[tuple[str, Any]]) -> Any:
    """The process group of the mesh that all these DTensors are on."""
    (name, first), *others = named
    mesh = first.device_mesh
    for other, p in others:
        if p.device_mesh != mesh:
            raise Error(
                f"[parameters] matrices '{name}' and '{other}' are DTensors on different meshes; "
                "make one optimizer for each mesh"
            )
    if mesh.get_coordinate() is None:
        raise Error(
            f"[parameters] matrix '{name}' is a DTensor on {mesh}, which does not include this "
            "process; make its optimizer only on the processes of the mesh"
        )
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.size() == dist.get_world_size():
        return dist.group.WORLD
    raise Error(
        f"[parameters] matrix '{name}' is a DTensor on {mesh}, which has several dimensions but "
        "not all processes; use a mesh of one dimension, or of all processes"
    )
