# SPDX-License-Identifier: Apache-2.0
"""Newton-Schulz on the whole starts of the matrices that this rank owns, in bf16."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from rode import _engine
from rode._binding import current_stream, engine_on


@dataclass(frozen=True)
class PartedMatrix:
    """A matrix that is stepped in parts (rode/matrix_parts.h)."""

    index: int
    name: str
    rows: int
    columns: int
    previous: bool  # the third array of its sums is the previous gradient, not the weights
    conditioner: str
    settings: list[tuple[str, str]]
    weight: bool  # conditioning needs the weights, too


class Conditioner:
    """An engine whose parameters are starts. Gradient, momentum and, unless the matrix has
    `weight`, weights are one memory: a step leaves the direction there."""

    def __init__(self, matrices: list[PartedMatrix], shapes: list[torch.Size], device: Any) -> None:
        self._device = torch.device(device)
        self._matrices = matrices
        self._starts: dict[str, torch.Tensor] = {}
        self._results: dict[str, torch.Tensor] = {}
        self._shapes = {m.name: shape for m, shape in zip(matrices, shapes, strict=True)}
        self._told: dict[str, dict[str, float]] = {}
        self._engine: _engine.Engine | None = None
        groups: dict[tuple[Any, ...], list[PartedMatrix]] = {}
        for matrix in matrices:
            groups.setdefault((matrix.conditioner, *matrix.settings), []).append(matrix)
        # In the engine's order.
        self._ordered = [matrix for members in groups.values() for matrix in members]
        for matrix in self._ordered:
            shape = (matrix.rows, matrix.columns)
            start = torch.zeros(shape, dtype=torch.bfloat16, device=self._device)
            self._starts[matrix.name] = start
            self._results[matrix.name] = torch.zeros_like(start) if matrix.weight else start
        specs = [
            (key[0], list(key[1:]), _engine.group_route(key[0], "matrix", "auto"), (None, False),
             [self._member(matrix) for matrix in members])
            for key, members in groups.items()
        ]  # fmt: skip
        if matrices:
            self._engine = engine_on(self._device, "refuse", True, specs, self._memory, _ignore)

    def _member(self, matrix: PartedMatrix) -> tuple[Any, ...]:
        value = self._results[matrix.name]
        # Fan-out is the shorter side: Muon's scale is then 1.
        layout = "out_in" if matrix.rows <= matrix.columns else "in_out"
        return (value, matrix.name, value.data_ptr(), list(value.shape), "BF16", layout, False, 0)

    def _memory(self, name: str, key: str, shape: list[int], dtype: str) -> tuple[int, bool]:
        assert key == "momentum" and dtype == "BF16"
        return self._starts[name].data_ptr(), True

    def places(self, matrix: PartedMatrix) -> list[torch.Tensor]:
        """Where the parts of a start go, and of the weights where they are needed."""
        shape = self._shapes[matrix.name]
        places = [self._starts[matrix.name].view(shape)]
        return [*places, self._results[matrix.name].view(shape)] if matrix.weight else places

    def run(self, active: set[int]) -> None:
        """On those that have a start in this step."""
        engine = self._engine
        if engine is None:
            return
        for position, matrix in enumerate(self._ordered):
            address = self._starts[matrix.name].data_ptr() if matrix.index in active else 0
            engine.bind_grad(position, address, "BF16")
        if self._device.type == "cuda":
            engine.set_stream(current_stream(self._device))
        try:
            engine.step(1.0)
        except _engine.Error:
            # The sums over a direction that is not finite tell all ranks; one that was not made
            # must not look like one.
            for matrix in self._ordered:
                self._results[matrix.name].fill_(math.nan)
        self._told = engine.matrix_diagnostics() if any(m.weight for m in self._matrices) else {}

    def direction(self, matrix: PartedMatrix) -> tuple[torch.Tensor, torch.Tensor]:
        """Y, and the factor with which it is the last iterate."""
        factor = -1.0
        if matrix.weight:
            told = self._told[matrix.name]
            factor = -told["q"] / told["rho"] if told["rho"] > 0 else 0.0
        place = self._results[matrix.name].view(self._shapes[matrix.name])
        return place, torch.tensor([factor], dtype=torch.float64, device=self._device)


def _ignore(_: str) -> None:
    """Warnings of the engine about options that no user has chosen."""
