# SPDX-License-Identifier: Apache-2.0
"""Which share of its updates a bf16 weight loses where results are rounded to the nearest value."""

from typing import Any

import torch

from rode.finetune.protocol import groups_of, make_optimizer

# Elements that are measured: enough for a share, few enough for any device.
_SAMPLE = 64_000_000


def _sampled(params: list[tuple[str, Any]], room: int) -> list[tuple[str, Any]]:
    """Parameters from all over the model until `room` is used; at least the smallest."""
    with_grad = [row for row in params if row[1].grad is not None]
    order = torch.randperm(len(with_grad), generator=torch.Generator().manual_seed(0)).tolist()
    out: list[tuple[str, Any]] = []
    for index in order:
        size = with_grad[index][1].numel()
        if size <= room:
            out.append(with_grad[index])
            room -= size
    return out or sorted(with_grad, key=lambda row: int(row[1].numel()))[:1]


@torch.no_grad()
def _counts(name: str, options: dict[str, Any], group: dict[str, Any], label: str, p: Any) -> Any:
    """Elements that change in fp32, and those of them that bf16 keeps as they are."""
    copy = torch.nn.Parameter(p.detach().float())
    copy.grad = p.grad.detach().float()
    chosen = {"rule": group["rule"], "layout": group.get("layout", "out_in")}
    plain = {**options, "rounding": "nearest"}  # means nothing to fp32
    optimizer = make_optimizer(name, [{"params": [(label, copy)], **chosen}], plain)
    # SOAP's first gradient makes its basis only.
    for _ in range(2 if name == "soap" else 1):
        optimizer.step()
    changed = copy != p.float()
    lost = changed & (copy.to(p.dtype) == p)
    return int(changed.sum()), int(lost.sum())


def lost_updates(name: str, options: dict[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    """Of a model with gradients: the shares lost by matrices and by the rest in a first step at
    the full rates. Weights and gradients stay as they are."""
    out: dict[str, Any] = {}
    total = [0, 0]
    for rule in ("matrix", "rest"):
        counts = [0, 0]
        for group in groups_of(model):
            if group["rule"] != rule:
                continue
            for label, p in _sampled(group["params"], _SAMPLE):
                changed, lost = _counts(name, options, group, label, p)
                counts = [counts[0] + changed, counts[1] + lost]
        out[rule] = counts[1] / counts[0] if counts[0] else None
        total = [total[0] + counts[0], total[1] + counts[1]]
    out["all"] = total[1] / total[0] if total[0] else None
    out["elements"] = total[0]
    return out


def line(shares: dict[str, Any]) -> str:
    def share(value: float | None) -> str:
        return "none measured" if value is None else f"{100 * value:.1f} %"

    return (
        f"rounding=nearest loses {share(shares['matrix'])} of the matrices' updates and "
        f"{share(shares['rest'])} of the rest's at these rates ({shares['elements']} elements, one "
        "step at full rate)"
    )
