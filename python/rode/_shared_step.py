# SPDX-License-Identifier: Apache-2.0
"""A step of several processes: what they agree on before it, and how each gets the weights that
others have stepped."""

import zlib
from collections.abc import Iterable
from typing import Any

import torch

from rode import _engine
from rode._binding import Binding, is_capturing
from rode._checks import check_gradient
from rode._engine import Error
from rode._pieces import Moving
from rode._ranks import Ranks
from rode._share import Share


class SharedSteps(Share):
    """A share, with its steps."""

    refused = 0  # steps that were left out, on all ranks
    _judged: Binding | None = None  # the engine whose limits are known

    @torch.no_grad()
    def step(self, optimizer: Any) -> None:
        """All ranks make it, or none. `optimizer._ready` gives the engine of this rank."""
        error: Exception | None = None
        binding, bad = None, [False] * len(self.params)
        try:
            binding = optimizer._ready()
            if is_capturing(binding.device):
                raise Error(
                    "[capture] the ranks agree on every step, which a CUDA graph cannot hold; step "
                    "outside of the capture"
                )
            if binding is not self._judged:
                self.set_limits(optimizer)
                self._judged = binding
            bad = self._bad_gradients()
        except Exception as found:
            if getattr(found, "agreed", False):  # all ranks raise it
                raise
            error = found
        self._begun = True  # on all ranks, those included that own nothing or have failed
        left = self._agree(optimizer, binding, bad, error)
        assert binding is not None  # or the agreement had raised
        error = None
        try:
            skipped = {id(self.params[index]) for index in left}
            left = [at for at, p in enumerate(binding.params) if id(p) in skipped]
            binding.step_parts(self._gradients(binding), left)
        except Exception as found:
            error = found
        try:
            failed = self._exchange(error is not None)
        except Error as broken:
            broken.changed = True  # this rank's weights, if no others
            raise
        if error is not None:
            if len(failed) < self.ranks.size and isinstance(error, Error):
                error.changed = True  # by the others
            raise error
        if failed:
            names = ", ".join(map(str, failed))
            error = Error(
                f"[step] the step failed on rank {names}, but was made on this one; restore a "
                "checkpoint on every rank; see the error of that rank"
            )
            error.changed = True
            raise error

    def _gradients(self, binding: Binding) -> dict[int, torch.Tensor]:
        """Of parameters that this rank steps in part, by index among its own."""
        out = {}
        for position, p in enumerate(binding.params):
            piece = self.own[self._index[id(p)]]
            if not piece.whole and p.grad is not None:
                out[position] = piece.of(p.grad)
        return out

    def _bad_gradients(self) -> list[bool]:
        """Which gradients here are not finite, or too large: all of them, not this rank's alone,
        because a rank whose copy is spoiled must not go on."""
        norms: dict[int, torch.Tensor] = {}
        for index, p in enumerate(self.params):
            grad = p.grad
            if grad is None:
                continue
            check_gradient(self.names[index], grad, p)
            norms[index] = torch.linalg.vector_norm(grad, dtype=torch.float64)
        bad = [False] * len(self.params)
        if norms:
            for index, norm in zip(norms, torch.stack(list(norms.values())).tolist(), strict=True):
                bad[index] = not _engine.finite_gradient(norm * norm, self._limits[index])
        return bad

    def _agree(
        self, optimizer: Any, binding: Binding | None, bad: list[bool], error: Exception | None
    ) -> list[int]:
        """One sum over the ranks, after which all of them decide alike. Returns the parameters
        that are left out of the step, where those are skipped and not refused."""
        n, size = len(self.params), self.ranks.size
        own = [float(error is not None), float(any(bad)), 0.0, 0.0]
        if binding is not None:
            own[2] = float(zlib.crc32(repr(optimizer._sent).encode()))
            own[3] = float(binding.settled().steps_done())
        rows = [0.0] * (4 * size)
        rows[4 * self.ranks.rank : 4 * self.ranks.rank + 4] = own
        present = [float(p.grad is not None) for p in self.params]
        told = [*present, *map(float, bad), *rows]
        told = self.ranks.sum(told) if size > 1 else told
        failed, spoiled, options, steps = (told[2 * n + k :: 4] for k in range(4))
        if error is not None:
            raise error
        trouble = self._trouble(failed, options, steps) or self._missing(told[:n])
        if trouble is not None:
            text, kind = trouble
        else:
            found = [i for i, count in enumerate(told[n : 2 * n]) if count]
            if not found or optimizer._on_non_finite == "skip":
                return found
            where = _listed(r for r, flag in enumerate(spoiled) if flag)
            text, kind = (
                f"gradient of '{self.names[found[0]]}' holds NaN or Inf, or is too large for fp32 "
                f"state, on rank {where}; nothing was changed on any rank; lower the rate or the "
                "loss scale, or set on_non_finite to skip",
                "non-finite",
            )
        self.refused += 1
        refusal = Error(f"[step] {text}")
        refusal.kind = kind
        raise refusal

    def _trouble(
        self, failed: list[float], options: list[float], steps: list[float]
    ) -> tuple[str, str] | None:
        if any(failed):
            where = _listed(r for r, flag in enumerate(failed) if flag)
            return (
                f"rank {where} could not step; nothing was changed on any rank; see its error",
                "process group",
            )
        for rank in range(1, self.ranks.size):
            if options[rank] != options[0]:
                return (
                    f"the options of rank {rank} differ from those of rank 0; nothing was changed "
                    "on any rank; schedule rates alike on every rank",
                    "process group",
                )
            if steps[rank] != steps[0]:
                return (
                    f"rank {rank} has made {steps[rank]:.0f} steps, rank 0 {steps[0]:.0f}; nothing "
                    "was changed on any rank; load the same checkpoint on every rank",
                    "process group",
                )
        return None

    def _missing(self, present: list[float]) -> tuple[str, str] | None:
        size = self.ranks.size
        for name, count in zip(self.names, present, strict=True):
            if 0 < count < size:
                text = _engine.missing_gradient_text(name, count, size - count)
                return text, "missing gradient"
        return None

    def _exchange(self, failed: bool) -> list[int]:
        """Sends this rank's weights and takes those of the others, in a few long messages. Returns
        the ranks whose step has failed."""
        if self.ranks.size == 1:
            return [0] if failed else []
        assert self.plan is not None
        moving = Moving(self.params)
        statuses: list[int] = []
        begin = 0
        for end in self.plan.cuts:
            part = torch.zeros(end - begin, dtype=torch.uint8, device=moving.device)
            if begin == 0:
                part[0] = int(failed)
            for piece in self.own.values():
                moving.read(piece, part, begin)
            rows = self.ranks.gather(part).to(moving.device)
            if begin == 0:
                statuses = rows[:, 0].tolist()
            for piece in self._pieces:
                if piece.rank != self.ranks.rank:
                    moving.write(piece, rows[piece.rank], begin)
            begin = end
        moving.finish()
        return [rank for rank, status in enumerate(statuses) if status]


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))


def make_share(group: Any, timeout: Any) -> SharedSteps | None:
    if group is None or group is False:
        if timeout is not None:
            raise Error("[process group] timeout without process_group; give both or none")
        return None
    return SharedSteps(Ranks(group, timeout))
