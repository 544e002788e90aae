# SPDX-License-Identifier: Apache-2.0
"""Matrices that are stepped in parts: every rank forms the momentum and writes the weights of its
own part, from sums over all parts. Only the start of Newton-Schulz goes to the owner of the matrix,
in bf16, as the products take it, and the direction comes back."""

from typing import Any

import torch

from rode import _engine
from rode._binding import Binding, _increment_version
from rode._conditioner import Conditioner, PartedMatrix
from rode._engine import Error
from rode._options import Method
from rode._regions import Regions
from rode._shards import local
from rode._stored_state import TYPE_NAMES, began_at_zero

_SUMS = 6  # of T, B and g: tt, bt, gt, bb, bg, gg
_DIAGNOSTICS = ("rho", "rho_next", "s", "q", "theta", "gamma", "m_norm")


def _row(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).to(torch.float64)


def _numbers(tensors: list[torch.Tensor]) -> list[float]:
    if not tensors:
        return []
    out: list[float] = torch.cat([_row(tensor) for tensor in tensors]).tolist()
    return out


class Parted:
    def __init__(self, params: list[torch.Tensor], names: list[str], regions: Regions) -> None:
        self._params, self._names, self._regions = params, names, regions
        self.matrices: dict[int, PartedMatrix] = {}
        self.diagnostics: dict[str, dict[str, float]] = {}  # of the last step
        self._groups: list[tuple[dict[str, Any], list[int]]] = []
        self._conditioner = Conditioner([], [], params[0].device)
        self._state: dict[int, dict[str, Any]] = {}
        self._rounder: Binding | None = None
        self._rounded: set[int] = set()
        # Of the step in progress: what sums were given, which have a start, what came back.
        self._formed: list[tuple[Any, list[int], list[Any]]] = []
        self.started: set[int] = set()
        self._directions: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    # ---- Before there is an engine ----------------------------------------------------------

    def follow(self, optimizer: Any, candidates: set[int]) -> bool:
        """Chooses those of the candidates that can be stepped so, with the state and the options
        that they have now; whether they are different from those before."""
        device = self._params[0].device
        before, self.matrices = self.matrices, {}
        self._groups = []
        first = 0
        for group in optimizer.param_groups:
            own = range(first, first + len(group["params"]))
            first = own.stop
            states = {i: optimizer.state.get(self._params[i], {}) for i in own if i in candidates}
            members = [i for i, entries in states.items() if not began_at_zero(entries)]
            rows = _engine.parted_matrices(self._spec(optimizer, group, members), device.type)
            by_name = {self._names[i]: i for i in members}
            found = [PartedMatrix(by_name[row[0]], *row) for row in rows]
            self.matrices.update((matrix.index, matrix) for matrix in found)
            if found:
                self._groups.append((group, [matrix.index for matrix in found]))
        mine = [m for i, m in self.matrices.items() if self._regions.owns(i)]
        if self.matrices != before:
            shapes = [self._params[m.index].shape for m in mine]
            self._conditioner = Conditioner(mine, shapes, device)
        self._state = {i: optimizer.state[self._params[i]] for i in self.matrices}
        self._make_rounder(optimizer)
        return self.matrices.keys() != before.keys()

    def _spec(self, optimizer: Any, group: dict[str, Any], members: list[int]) -> Any:
        rows = [
            (None, self._names[i], 0, list(p.shape), TYPE_NAMES[p.dtype], group["layout"], False)
            for i, p in ((i, self._params[i]) for i in members)
        ]
        return (*optimizer._method(group), rows)

    def _make_rounder(self, optimizer: Any) -> None:
        """bf16 weights that are rounded at random: W - (W - W') as SGD's engine writes it."""
        self._rounder, self._rounded = None, set()
        groups: list[dict[str, Any]] = []
        methods: list[Method] = []
        for group, members in self._groups:
            chosen = [i for i in members if self._params[i].dtype is torch.bfloat16]
            if not chosen or group["rounding"] != "stochastic":
                continue
            self._rounded.update(chosen)
            names = [self._names[i] for i in chosen]
            params = [self._params[i] for i in chosen]
            groups.append({"params": params, "param_names": names, "layout": group["layout"]})
            # Without momentum it leaves the matrix's as it is.
            own = {key: str(group[key]) for key in ("rounding", "seed", "state_dtype")}
            settings = {"lr": "1", "momentum": "0", "weight_decay": "0", **own}
            route = _engine.group_route("sgd", "matrix", "auto")
            methods.append(("sgd", list(settings.items()), route, (None, False)))
        if self._rounded:
            self._rounder = Binding(groups, optimizer.state, methods, "refuse")
            done = max(group.get("steps_done", 0) for group in optimizer.param_groups)
            self._rounder.engine.set_steps_done(done)

    # ---- A step: sums, starts ---------------------------------------------------------------

    def measure(self, grads: dict[int, torch.Tensor]) -> torch.Tensor:
        """This rank's part of the six sums of every matrix."""
        nothing = torch.zeros(_SUMS, dtype=torch.float64, device=self._params[0].device)
        sums = [nothing] * len(self.matrices)
        for position, (index, matrix) in enumerate(self.matrices.items()):
            if index in grads and self._regions.sends(index):
                rows = torch.stack(
                    [_row(x) for x in (*self._third_and_buffer(matrix), grads[index])]
                )
                gram = rows @ rows.T
                sums[position] = gram[[0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2]]
        return torch.cat(sums) if sums else nothing[:0]

    def _third_and_buffer(self, matrix: PartedMatrix) -> tuple[torch.Tensor, torch.Tensor]:
        entries = self._state[matrix.index]
        third = entries["previous_grad"] if matrix.previous else self._params[matrix.index]
        return local(third).detach(), local(entries["momentum"])

    def form(
        self,
        optimizer: Any,
        sums: list[float],
        active: set[int],
        grads: dict[int, torch.Tensor],
        parts: dict[int, list[torch.Tensor]],
        wholes: dict[int, list[torch.Tensor]],
    ) -> None:
        """Forms the momentum of this rank's parts, and adds their starts to the messages to the
        owners. Raises, on all ranks and before anything has changed, where weights or momentum
        are not finite."""
        by_index = {
            index: sums[_SUMS * at : _SUMS * (at + 1)] for at, index in enumerate(self.matrices)
        }
        self._formed = []
        forms: list[tuple[int, Any]] = []
        scalars_now = self._scalars(active)
        for group, members in self._groups:
            own = [i for i in members if i in active]
            if not own:
                continue
            spec = self._spec(optimizer, group, own)
            inputs = [(by_index[i], scalars_now[i]) for i in own]
            self._formed.append((spec, own, inputs))
            forms += zip(own, _engine.form_parts(spec, inputs), strict=True)
        for index, (good_weight, *_) in forms:
            if not good_weight:
                error = Error(f"[step] {_engine.bad_weights_text(self._names[index], True)}")
                error.kind = "non-finite"
                raise error
        self.started = set()
        for index, (_, direction, buffer, start, scalars) in forms:
            matrix = self.matrices[index]
            third, held = self._third_and_buffer(matrix)
            # A rank without elements may have no gradient.
            grad = grads.get(index, held).to(torch.float64)
            wide = third.to(torch.float64)
            fresh = buffer[0] * held.to(torch.float64) + buffer[1] * grad + buffer[2] * wide
            held.copy_(fresh)
            for key, value in scalars.items():
                self._state[index][key].fill_(value)
            if direction:
                self.started.add(index)
                x = start[0] * fresh + start[1] * grad + start[2] * wide
                weights = [local(self._params[index])] if matrix.weight else []
                parts[index] = [part.detach().to(torch.bfloat16) for part in (x, *weights)]
                if self._regions.owns(index):
                    wholes[index] = self._conditioner.places(matrix)
            if matrix.previous:
                third.copy_(grad)

    def _scalars(self, active: set[int]) -> dict[int, dict[str, float]]:
        """One number for the whole matrix each, the same on every rank; one transfer for all."""
        places = [
            (index, key, value)
            for index in active
            for key, value in self._state[index].items()
            if value.numel() == 1
        ]
        values = _numbers([value for _, _, value in places])
        out: dict[int, dict[str, float]] = {index: {} for index in active}
        for (index, key, _), value in zip(places, values, strict=True):
            out[index][key] = value
        return out

    # ---- Directions, weights ----------------------------------------------------------------

    def condition(self) -> None:
        self._conditioner.run(self.started)

    def give(
        self,
        wholes: dict[int, list[tuple[torch.Tensor, bool]]],
        parts: dict[int, list[torch.Tensor]],
    ) -> None:
        """Adds to messages from the owners the directions."""
        self._directions = {}
        for index in self.started:
            own = local(self._params[index])
            direction = torch.empty(own.shape, dtype=torch.bfloat16, device=own.device)
            factor = torch.empty(1, dtype=torch.float64, device=own.device)
            self._directions[index] = direction, factor
            parts[index] = [direction, factor]
            if self._regions.owns(index):
                whole, told = self._conditioner.direction(self.matrices[index])
                wholes[index] = [(whole, True), (told, False)]

    def measure_directions(self) -> torch.Tensor:
        """This rank's part of <Y,W>, ||Y||^2 and ||W||^2 of every matrix of the step."""
        sums = []
        for _, own, _ in self._formed:
            for index in own:
                w = _row(local(self._params[index]))
                y = _row(self._directions[index][0]) if index in self.started else w * 0
                counts = float(self._regions.sends(index))
                sums.append(torch.stack([y @ w, y @ y, w @ w]) * counts)
        nothing = torch.zeros(0, dtype=torch.float64, device=self._params[0].device)
        return torch.cat([nothing, *sums])

    def write(self, sums: list[float]) -> None:
        """The weights of this rank's parts. Raises, on all ranks, where they would not be finite:
        state has changed then, and weights have not."""
        told = _numbers([factor for _, factor in self._directions.values()])
        factors = dict(zip(self._directions, told, strict=True))
        triples = zip(sums[0::3], sums[1::3], sums[2::3], strict=True)
        writes: list[tuple[int, Any]] = []
        for spec, members, inputs in self._formed:
            directions = [(factors.get(index, 0.0), *next(triples)) for index in members]
            writes += zip(members, _engine.write_parts(spec, inputs, directions), strict=True)
        for index, (finite, *_) in writes:
            if not finite:
                error = Error(
                    f"[step] the weights of '{self._names[index]}' held NaN or Inf before this "
                    "step, or would hold them after it; state has changed on every rank; restore "
                    "a checkpoint and lower the rate"
                )
                error.kind, error.changed = "non-finite", True
                raise error
        self.diagnostics = {}
        rounded: dict[int, torch.Tensor] = {}
        for index, (_, on_w, on_y, figures) in writes:
            own = local(self._params[index]).detach()
            if figures[0] > 0:
                named = dict(zip(_DIAGNOSTICS, figures, strict=True))
                self.diagnostics[self._names[index]] = named
            wide = own.to(torch.float32)
            fresh = wide * on_w
            if index in self._directions:
                fresh.add_(self._directions[index][0].to(torch.float32), alpha=on_y)
            if index in self._rounded:
                rounded[index] = wide.sub_(fresh)
            elif on_w != 1 or on_y != 0:
                own.copy_(fresh)
        if self._rounder is not None:
            positions = {id(p): at for at, p in enumerate(self._rounder.params)}
            given = {positions[id(self._params[i])]: delta for i, delta in rounded.items()}
            self._rounder.step_parts(given, [])
        _increment_version([self._params[index] for index, _ in writes])
