# SPDX-License-Identifier: Apache-2.0
"""Pieces of parameters, and their bytes between memory and messages."""

from dataclasses import dataclass

import torch

from rode._binding import _increment_version


@dataclass(frozen=True)
class Piece:
    """What a rank steps of a parameter; elements lie as in memory."""

    index: int  # over all groups
    rank: int
    first: int  # element
    count: int  # of elements
    whole: bool
    offset: int  # bytes, within its owner's message
    # Of a batch of matrices that is divided between them: the elements of one. 0: it is divided
    # between elements.
    unit: int = 0

    def shape(self, p: torch.Tensor) -> list[int]:
        """Of what is stepped."""
        if self.whole:
            return list(p.shape)
        return [self.count // self.unit, *p.shape[1:]] if self.unit else [self.count]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a tensor that has the parameter's shape."""
        if self.unit:
            return tensor[self.first // self.unit : (self.first + self.count) // self.unit]
        return tensor.reshape(-1)[self.first : self.first + self.count]


def cut(p: torch.Tensor, piece: Piece) -> torch.Tensor:
    return piece.of(p.detach())


class Moving:
    """Bytes of parameters between their memory and messages."""

    def __init__(self, params: list[torch.Tensor]) -> None:
        self.params = params
        self.device = params[0].device if params else torch.device("cpu")
        # Of parameters with gaps or another order, which are copied around.
        self._copies: dict[int, torch.Tensor] = {}
        self._written: set[int] = set()

    def _bytes(self, piece: Piece) -> torch.Tensor:
        value = self.params[piece.index].detach()
        if not value.is_contiguous():
            if piece.index not in self._copies:
                self._copies[piece.index] = value.contiguous()
            value = self._copies[piece.index]
        flat = value.reshape(-1)[piece.first : piece.first + piece.count]
        return flat.view(torch.uint8)

    def _overlap(
        self, piece: Piece, message: torch.Tensor, begin: int
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The bytes of a piece that lie in the message from `begin` on: in memory, and there."""
        size = piece.count * self.params[piece.index].element_size()
        first, last = max(begin, piece.offset), min(begin + len(message), piece.offset + size)
        if first >= last:
            return None
        held = self._bytes(piece)[first - piece.offset : last - piece.offset]
        return held, message[first - begin : last - begin]

    def read(self, piece: Piece, message: torch.Tensor, begin: int) -> None:
        found = self._overlap(piece, message, begin)
        if found is not None:
            found[1].copy_(found[0])

    def write(self, piece: Piece, message: torch.Tensor, begin: int) -> None:
        found = self._overlap(piece, message, begin)
        if found is not None:
            found[0].copy_(found[1])
            self._written.add(piece.index)

    def finish(self) -> None:
        for index in self._written & self._copies.keys():
            self.params[index].detach().copy_(self._copies[index])
        _increment_version([self.params[i] for i in sorted(self._written)])
