# SPDX-License-Identifier: Apache-2.0
"""The processes of a group and what they send each other: each call waits for a limited time, and
its failure names the ranks that do not answer."""

import json
import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rode._engine import Error

# How long after a failure ranks wait for a word of the others, and how often those that wait look
# whether there has been one.
_ANSWER_S, _LOOK_S = 3.0, 0.5
_made: dict[str, int] = {}  # instances, by the name of their group


def _limit(timeout: Any) -> timedelta | None:
    if timeout is None or isinstance(timeout, timedelta):
        return timeout
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout > 0:
        return timedelta(seconds=timeout)
    raise Error(f"[process group] timeout = {timeout!r}; expected seconds above 0, or a timedelta")


def _backend(group: Any, kind: str) -> str:
    """The name of the group's backend for tensors of a kind of device; empty where it has none."""
    try:
        return str(group._get_backend(torch.device(kind)).name())
    except RuntimeError:
        return ""


class Ranks:
    """This process among those of a group."""

    def __init__(self, group: Any, timeout: Any = None) -> None:
        self._limit = _limit(timeout)
        if not (dist.is_available() and dist.is_initialized()):
            raise Error(
                "[process group] torch.distributed has not been initialised; call "
                "torch.distributed.init_process_group() first, and start the program with torchrun"
            )
        self._group: Any = dist.group.WORLD if group is True else group
        if not isinstance(self._group, dist.ProcessGroup):
            raise Error(
                f"[process group] process_group is a {type(group).__name__}; expected a "
                "torch.distributed.ProcessGroup, or True for all processes"
            )
        self.rank: int = dist.get_rank(self._group)
        self.size: int = dist.get_world_size(self._group)
        # NCCL takes a GPU's tensors alone, and gloo not in every call. A group may have both, as
        # init_process_group() without a backend makes it: the host's tensors then go by gloo, so
        # that they need no GPU for each process.
        self._nccl = torch.cuda.is_available() and _backend(self._group, "cuda") == "nccl"
        gpu_alone = self._nccl and not _backend(self._group, "cpu")
        place = ("cuda", torch.cuda.current_device()) if gpu_alone else ("cpu",)
        self._device = torch.device(*place)
        name = str(getattr(self._group, "group_name", ""))
        _made[name] = _made.get(name, 0) + 1
        # Of words in the store: the same on every rank, because all of them make their optimizers
        # together.
        self._key = f"rode/{name}/{_made[name]}"
        self.calls = 0  # collectives so far
        self.bytes = 0  # that this rank has given to them

    def sum(self, values: list[float]) -> list[float]:
        total = torch.tensor(values, dtype=torch.float64, device=self._device)
        self._run("sum", total, lambda: dist.all_reduce(total, group=self._group, async_op=True))
        out: list[float] = total.tolist()
        return out

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """Bytes of equal length from every rank, one row each."""
        part = self._placed(part)
        out = part.new_empty(self.size * part.numel())
        # The name of torch 2.13; the other one is deprecated there.
        collect = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        self._run(
            "gather",
            part,
            lambda: collect(out, part, group=self._group, async_op=True),
        )
        return out.view(self.size, -1)

    def exchange(self, send: torch.Tensor, sent: list[int], expected: list[int]) -> torch.Tensor:
        """Bytes to every rank, one after the other, `sent` of them to each; returns those that the
        ranks have sent here."""
        send = self._placed(send)
        out = send.new_empty(sum(expected))
        self._run(
            "exchange",
            send,
            lambda: dist.all_to_all_single(
                out, send, expected, sent, group=self._group, async_op=True
            ),
        )
        return out

    def tell(self, what: Any) -> list[Any]:
        """What every rank sends, as JSON, in the order of the ranks."""
        text = torch.frombuffer(bytearray(json.dumps(what).encode()), dtype=torch.uint8)
        length = torch.tensor([text.numel()], dtype=torch.int64)
        lengths = self.gather(length).flatten().tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: text.numel()] = text
        rows = self.gather(padded).cpu()
        return [
            json.loads(bytes(row[:n].tolist()).decode())
            for row, n in zip(rows, lengths, strict=True)
        ]

    def objects(self, what: Any, to: int | None) -> list[Any] | None:
        """What every rank gives, on rank `to` (None: on all of them)."""
        out: list[Any] = [None] * self.size
        if to is None:
            dist.all_gather_object(out, what, group=self._group)
            return out
        here = self.rank == to
        root = dist.get_global_rank(self._group, to)
        dist.gather_object(what, out if here else None, dst=root, group=self._group)
        return out if here else None

    def _placed(self, given: torch.Tensor) -> torch.Tensor:
        """Where the group's backend takes it."""
        return given if given.is_cuda and self._nccl else given.to(self._device)

    # ---- Failures ---------------------------------------------------------------------------

    def _run(self, what: str, given: torch.Tensor, start: Callable[[], Any]) -> None:
        self.calls += 1
        self.bytes += given.numel() * given.element_size()
        began = time.monotonic()
        try:
            self._wait(start(), began, given.is_cuda)
        except RuntimeError as error:  # c10d's own are of this kind
            raise self._broken(what, time.monotonic() - began, error) from error

    def _wait(self, work: Any, began: float, nccl: bool) -> None:
        """At most for the time limit. With gloo, whose failures reach a rank's neighbours alone, it
        ends soon after another rank has failed; NCCL's own threads see to that."""
        if nccl:
            work.wait(*([] if self._limit is None else [self._limit]))
            return
        limit = math.inf if self._limit is None else self._limit.total_seconds()
        while True:
            left = began + limit - time.monotonic()
            try:
                work.wait(timedelta(seconds=max(0.001, min(_LOOK_S, left))))
                return
            except RuntimeError:
                if work.is_completed() or left <= _LOOK_S or self._has_failed():
                    raise

    def _words(self) -> str:
        return f"{self._key}/{self.calls}/"

    def _has_failed(self) -> bool:
        """Whether another rank has left a word that this call failed there."""
        try:
            store = dist.distributed_c10d._get_default_store()
            return any(store.check([f"{self._words()}{rank}"]) for rank in range(self.size))
        except (RuntimeError, OSError):  # its server has ended
            return True
        except Exception:  # this torch has no such store: the time limit alone counts
            return False

    def _broken(self, what: str, seconds: float, error: Exception) -> Error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        cause = lines[0][:160]
        absent = self._absent()
        who = "all ranks answered afterwards, so one was late or in another call"
        if absent is None:
            who = "the store of the process group, which rank 0 hosts, does not answer"
        elif absent:
            names = ", ".join(map(str, absent))
            who = f"rank {names} of {self.size} does not answer: it has ended, or waits elsewhere"
        broken = Error(
            f"[process group] {what} on rank {self.rank} failed after {seconds:.1f} s: {who} "
            f"({cause}); see that rank's error, and restart all ranks from a checkpoint"
        )
        broken.kind = "process group"
        return broken

    def _absent(self) -> list[int] | None:
        """Ranks that write nothing into the store, as every rank does whose call has failed. None:
        the store is gone."""
        own = self._words()
        try:
            store = dist.distributed_c10d._get_default_store()
            store.set(f"{own}{self.rank}", "failed")
            missing = set(range(self.size))
            end = time.monotonic() + _ANSWER_S
            while missing and time.monotonic() < end:
                missing = {r for r in missing if not store.check([f"{own}{r}"])}
                time.sleep(0.05)
            return sorted(missing)
        except Exception:  # gone, or not to be had
            return None
