# SPDX-License-Identifier: Apache-2.0
"""State of an optimizer that several processes share: one process's part, and the whole."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from rode._engine import Error
from rode._shards import is_dtensor
from rode._share import Share
from rode._stored_state import began_at_zero
from rode._wholes import Wholes

# Of a state dict: whose it is. Absent: of the whole.
_KEY = "share"


def share_state_dict(optimizer: Any, share: Share | Wholes) -> dict[str, Any]:
    """What this rank holds, marked where no other rank can load it."""
    given: dict[str, Any] = optimizer._all_state()
    return {**given, _KEY: _mark(share)} if share.keeps_own else given


def _mark(share: Share | Wholes) -> dict[str, Any]:
    plan = "" if share.plan is None else f"{share.plan.hash:016x}"
    return {"rank": share.ranks.rank, "ranks": share.ranks.size, "plan": plan}


def share_shapes(
    given: dict[str, Any], share: Share | Wholes | None
) -> Callable[[torch.Tensor], list[int]] | None:
    """The shapes of a state dict that is one rank's; None: it is of the whole."""
    mark = given.get(_KEY)
    if mark is None:
        return None
    if share is not None and mark == _mark(share):
        return share.shape
    here = "an optimizer of one process, without process_group"
    if share is not None:
        here = f"rank {share.ranks.rank} of {share.ranks.size}"
        if (mark["rank"], mark["ranks"]) == (share.ranks.rank, share.ranks.size):
            here += " with other parameters"
    raise Error(
        f"[load state] the state dict is the share of rank {mark['rank']} of {mark['ranks']}, and "
        f"this is {here}; save consolidated_state_dict(), which loads anywhere"
    )


def own_part(whole: dict[str, Any], share: Share | Wholes) -> dict[str, Any]:
    """A state dict of the whole, with this rank's share of its state alone."""
    numbers = chain.from_iterable(group["params"] for group in whole["param_groups"])
    state = {}
    for index, number in enumerate(numbers):
        entries = share.cut(index, whole["state"][number]) if number in whole["state"] else None
        if entries is not None:
            state[number] = entries
    return {**whole, "state": state}


def consolidated(optimizer: Any, share: Share | Wholes, to: int | None) -> dict[str, Any] | None:
    if to is not None and not 0 <= to < share.ranks.size:
        raise Error(
            f"[state] consolidated_state_dict(to={to}); expected a rank below {share.ranks.size}, "
            "or None for all"
        )
    optimizer._note_steps()
    # All of them: to make a DTensor whole takes all ranks.
    held = {
        index: {key: _on_host(value) for key, value in optimizer.state[p].items()}
        for index, p in enumerate(share.params)
        if optimizer.state.get(p)
    }
    own = {index: entries for index, entries in held.items() if share.tells(index)}
    told = share.ranks.objects(own, to)
    if told is None:
        return None
    whole: dict[torch.Tensor, dict[str, Any]] = {}
    rests = [
        optimizer._zero_norm(group) is not None
        for group in optimizer.param_groups
        for _ in group["params"]
    ]
    for index, p in enumerate(share.params):
        parts = [
            (piece, told[piece.rank][index])
            for piece in share.pieces_of(index)
            if index in told[piece.rank]
        ]
        if parts:
            # A batch that began at zero has the rest's state.
            by_matrix = parts[0][0].unit and not (rests[index] and began_at_zero(parts[0][1]))
            whole[p] = _joined(parts, p, bool(by_matrix))
    kept, optimizer.state = optimizer.state, whole
    try:
        out: dict[str, Any] = optimizer._all_state()
        return out
    finally:
        optimizer.state = kept


def _on_host(value: Any) -> Any:
    if is_dtensor(value):
        value = value.full_tensor()
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _joined(
    parts: list[tuple[Any, dict[str, Any]]], p: torch.Tensor, by_matrix: bool
) -> dict[str, Any]:
    """The state of a parameter from what its owners have of it; `by_matrix`: each has that of
    some matrices of a batch."""
    if parts[0][0].whole:
        return parts[0][1]
    out = {}
    for key, value in parts[0][1].items():
        pieces = [entries[key] for _, entries in parts]
        divided = all(
            isinstance(held, torch.Tensor) and held.numel() == piece.count
            for held, (piece, _) in zip(pieces, parts, strict=True)
        )
        if by_matrix and isinstance(value, torch.Tensor):
            out[key] = torch.cat(pieces)  # one row for every matrix
        else:
            out[key] = torch.cat(pieces).view(p.shape) if divided else value
    return out


def refuse_named_state(share: Share | Wholes | None) -> None:
    if share is not None:
        raise Error(
            "[state] this process holds a share of the state, and named_state is the whole "
            "state; load consolidated_state_dict() into an optimizer of one process"
        )


def refuse_parts(groups: list[dict[str, Any]]) -> None:
    """Of DTensors that are all stepped where they lie: each rank holds its shards of the state."""
    if any(is_dtensor(p) for group in groups for p in group["params"]):
        raise Error(
            "[state] consolidated_state_dict() of DTensors whose state is placed as they are would "
            "hold this rank's shards alone; save with torch.distributed.checkpoint "
            "(get_state_dict and save)"
        )


def refuse_copy(share: Share | Wholes | None) -> None:
    if share is not None:
        raise Error(
            "[copy] an optimizer that holds a share of the state belongs to its processes and "
            "cannot be copied or pickled; save consolidated_state_dict()"
        )
