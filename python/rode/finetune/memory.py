# SPDX-License-Identifier: Apache-2.0
"""What a run will need of the device's memory, by kind, from the shapes alone: printed before
anything is loaded."""

import os
from typing import Any

import torch

from rode import _engine
from rode._command import Failed, bytes_text
from rode._stored_state import TENSOR_TYPES, TYPE_NAMES
from rode.finetune.protocol import groups_of, make_optimizer

# Matrices go through Newton-Schulz in batches of this size; one matrix always fits
# (docs/cuda.md).
_BATCH_BYTES = 512 << 20
# Rows and columns of the tiles that Adafactor's kernels cut a matrix into.
_ADAFACTOR_TILE = (128, 256)
# What CUDA, cuBLAS and PyTorch's kernels take for themselves.
_CONTEXT_BYTES = 600_000_000
_REMEDY = (
    "use a larger device, a shorter --length, --set state_dtype=bf16, or --no-memory-check if "
    "the plan is known to be too high"
)


def state_bytes(name: str, options: dict[str, Any], model: torch.nn.Module) -> int:
    """The optimizer's state for a model's shapes, as the engine plans it."""
    total = 0
    for group in groups_of(model):
        # One small parameter stands for the group: the engine is then asked about the real shapes.
        shape = (2, 2) if group["rule"] == "matrix" else (2,)
        stand_in = torch.nn.Parameter(torch.zeros(shape, dtype=group["params"][0][1].dtype))
        chosen = {"rule": group["rule"], "layout": group.get("layout", "out_in")}
        optimizer = make_optimizer(name, [{"params": [("p", stand_in)], **chosen}], options)
        method = optimizer._method(optimizer.param_groups[0])
        members = [
            (None, label, 0, list(p.shape), TYPE_NAMES[p.dtype], chosen["layout"], None)
            for label, p in group["params"]
        ]
        for _, _, shape_planned, dtype in _engine.planned_state((*method, members)):
            count = 1
            for size in shape_planned:
                count *= size
            total += count * TENSOR_TYPES[dtype].itemsize
    return total


def _adafactor_workspace(m: int, n: int) -> int:
    """Partial sums of the tiles that a matrix is cut into on CUDA, in doubles
    (src/backend/cuda/adafactor): of every row and column of a tile, and three of the tile."""
    down, across = -(-m // _ADAFACTOR_TILE[0]), -(-n // _ADAFACTOR_TILE[1])
    return 8 * (across * m + down * n + 3 * down * across)


def _workspace(name: str, model: torch.nn.Module, on_gpu: bool) -> int:
    """Of Newton-Schulz for the largest matrix: iterates, for RODE also the direction, and small
    squares. The engine's own figure is known only when its state exists."""
    if name == "adamw":
        return 0
    shapes = [p.shape for p in model.parameters() if p.dim() == 2]
    if name == "adafactor":
        return sum(_adafactor_workspace(m, n) for m, n in shapes) if on_gpu else 0
    if name == "soap":  # the gradient and the update in the eigenbasis
        return max((2 * 4 * m * n for m, n in shapes), default=0)
    width = 2 if on_gpu else 4  # bf16 products on CUDA, fp32 on the CPU
    iterates, smalls = (3, 1) if name == "rode" else (2, 4)
    sizes = (width * (iterates * m * n + smalls * min(m, n) ** 2) for m, n in shapes)
    largest = max(sizes, default=0)
    return max(largest, _BATCH_BYTES) if on_gpu else largest * torch.get_num_threads()


def _activations(config: Any, tokens: int, width: int, checkpointing: bool) -> int:
    """Of one micro-batch of `tokens` positions; `width`: bytes per element."""
    text = config.get_text_config()
    hidden, layers = text.hidden_size, text.num_hidden_layers
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    # Norms, projections, attention and MLP of one layer, as backward needs them.
    layer = tokens * (16 * hidden + 4 * inner) * width
    kept = layers * tokens * hidden * width + layer if checkpointing else layers * layer
    # Logits, and in fp32 their copy, the log-probabilities and the gradient; the gradient again.
    return int(kept + tokens * text.vocab_size * (2 * width + 3 * 4))


def plan(
    name: str,
    options: dict[str, Any],
    model: torch.nn.Module,
    config: Any,
    tokens: int,
    checkpointing: bool,
    on_gpu: bool,
) -> dict[str, int]:
    """Bytes by kind. `model` may be without memory; `tokens`: positions of one micro-batch."""
    weights = sum(p.numel() * p.dtype.itemsize for p in model.parameters())
    width = next(model.parameters()).dtype.itemsize
    out = {
        "weights": weights,
        "gradients": weights,
        "optimizer state": state_bytes(name, options, model),
        "optimizer workspace (estimate)": _workspace(name, model, on_gpu),
        "activations (estimate)": _activations(config, tokens, width, checkpointing),
    }
    if on_gpu:
        out["CUDA context (estimate)"] = _CONTEXT_BYTES
    return out


def available(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            rows = dict(line.split(":", 1) for line in file)
        return int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def table(kinds: dict[str, int], room: int | None = None) -> str:
    rows = [*kinds.items(), ("together", sum(kinds.values()))]
    if room is not None:
        rows.append(("available", room))
    width = max(len(kind) for kind, _ in rows)
    return "\n".join(f"  {kind:<{width}}  {bytes_text(size):>10}" for kind, size in rows)


def check_fits(kinds: dict[str, int], room: int, remedy: str = _REMEDY) -> None:
    total = sum(kinds.values())
    if total > room:
        raise Failed(
            f"[memory] the run needs {bytes_text(total)}, but {bytes_text(room)} are "
            f"available:\n{table(kinds, room)}\n{remedy}"
        )
