# SPDX-License-Identifier: Apache-2.0
"""Which parameters of a module take the matrix rule: module types decide, names where they are
unknown."""

import fnmatch
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from rode import _engine

ROUTES = ("language", "vision", "all_matrices")
_TREATMENTS = ("matrix", "rest", "frozen")
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
# Modules whose two-dimensional weights are maps between features.
_PROJECTIONS = (nn.Linear, nn.Bilinear, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)

# Fewer rows are a layer's as well as a vocabulary's.
_VOCABULARY_ROWS = 8192


def _is_transposed(module: nn.Module) -> bool:
    """Hugging Face's Conv1D, which stores (in, out)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _vocabulary_name(name: str) -> bool:
    """The rule of the engine where nothing is known but the name."""
    return any(
        part.startswith(("emb", "unembed")) or part in ("wte", "wpe", "lm_head", "head", "output")
        for part in name.split(".")
    )


def _head(model: nn.Module) -> nn.Module | None:
    """The last projection to the vocabulary: the model's own word for it, or the last layer with
    as many outputs as the largest embedding has entries."""
    getter = getattr(model, "get_output_embeddings", None)
    if callable(getter):
        try:
            head = getter()
        except NotImplementedError:
            head = None
        if isinstance(head, nn.Module):
            return head
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, _EMBEDDINGS)]
    if not sizes:
        return None
    found = None
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.out_features == max(sizes):
            found = module
    return found


def _by_language(
    name: str, p: torch.Tensor, owners: list[nn.Module], head: object
) -> tuple[str, str]:
    """Treatment and reason."""
    if p.dim() != 2:
        return "rest", f"rank {p.dim()}"
    for owner in owners:
        if isinstance(owner, _EMBEDDINGS):
            return "rest", f"{type(owner).__name__}{', tied' if len(owners) > 1 else ''}"
    if any(owner is head for owner in owners):
        return "rest", "head"
    for owner in owners:
        if isinstance(owner, _PROJECTIONS) or _is_transposed(owner):
            return "matrix", type(owner).__name__
    return ("rest", "its name") if _vocabulary_name(name) else ("matrix", "2-D")


def _by_rank(route: str, p: torch.Tensor) -> tuple[str, str]:
    matrix = p.dim() >= 2 if route == "vision" else p.dim() == 2
    return "matrix" if matrix else "rest", f"rank {p.dim()}"


def _override(overrides: Mapping[str, str], names: list[str]) -> tuple[str, str] | None:
    for pattern, treatment in overrides.items():
        escaped = pattern.replace("[", "[[]")
        if any(fnmatch.fnmatchcase(name, escaped) for name in names):
            return treatment, f"override {pattern!r}"
    return None


def param_groups(
    model: nn.Module,
    route: str = "language",
    overrides: Mapping[str, str] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """The groups that `rode.RODE(model)` makes, to look at and to edit.

    route: "language": two dimensions, neither embedding nor head; "vision": two or more
    dimensions; "all_matrices": two dimensions. overrides: from patterns of names ('*', '?') to
    "matrix", "rest" or "frozen"; the first that matches wins. Further options go into the groups
    of the matrices.

    A parameter under several names (tied weights) is one, under its first name. Those with
    requires_grad=False are left out. `reasons` of a group are for `routing_table`.
    """
    if route not in ROUTES:
        raise _engine.OptionError(f"[routing] route = {route!r}; expected one of {ROUTES}")
    overrides = dict(overrides or {})
    for pattern, treatment in overrides.items():
        if treatment not in _TREATMENTS:
            raise _engine.OptionError(
                f"[routing] override {pattern!r} = {treatment!r}; expected one of {_TREATMENTS}"
            )
    names: dict[torch.Tensor, list[str]] = {}
    owners: dict[torch.Tensor, list[nn.Module]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for local, p in module.named_parameters(recurse=False, remove_duplicate=False):
            names.setdefault(p, []).append(f"{prefix}.{local}" if prefix else local)
            owners.setdefault(p, []).append(module)
    for pattern in overrides:
        if not any(_override({pattern: "rest"}, own) for own in names.values()):
            raise _engine.OptionError(
                f"[routing] override {pattern!r} matches no parameter; patterns are globs on the "
                "whole name, such as '*.weight'"
            )
    head = _head(model) if route == "language" else None
    groups: dict[str, dict[str, Any]] = {
        "out_in": {"params": [], "reasons": {}, "rule": "matrix", "layout": "out_in", **options},
        "in_out": {"params": [], "reasons": {}, "rule": "matrix", "layout": "in_out", **options},
        "rest": {"params": [], "reasons": {}, "rule": "rest"},
    }
    for p, own in names.items():
        if not p.requires_grad:
            continue
        chosen = _override(overrides, own)
        if chosen is None and route == "language":
            chosen = _by_language(own[0], p, owners[p], head)
        treatment, reason = chosen or _by_rank(route, p)
        if treatment == "frozen":
            continue
        if treatment == "matrix":
            treatment = "in_out" if any(map(_is_transposed, owners[p])) else "out_in"
        groups[treatment]["params"].append((own[0], p))
        groups[treatment]["reasons"][own[0]] = reason
    return [group for group in groups.values() if group["params"]]


def warn_of_vocabularies(groups: list[dict[str, Any]]) -> None:
    """Warns where the matrix rule gets a tensor without a name that looks like an embedding or a
    head: it has the most rows of all, 8192 or more, at most two tensors have as many, and nothing
    takes as many features in.

    A layer's outputs are another layer's inputs: a matrix with as many columns is there, or, where
    layers are fused into one (gate and up; query, key and value; the gates of an LSTM), with a half, a third or a
    quarter of them.
    Other shapes of layers come back in every block. Nothing reads a vocabulary, and a model has
    one embedding and one head.
    """
    shapes = [
        tuple(p.shape)
        for group in groups
        if group["rule"] == "auto" and group["route"] == "language" and "param_names" not in group
        for p in group["params"]
        if not torch.nn.parameter.is_lazy(p) and p.dim() == 2
    ]
    rows = max((shape[0] for shape in shapes), default=0)
    found = [shape for shape in shapes if shape[0] == rows]
    read = any(rows == fused * shape[1] for shape in shapes for fused in (1, 2, 3, 4))
    if rows < _VOCABULARY_ROWS or len(found) > 2 or read:
        return
    warnings.warn(
        f"[routing] a tensor of {rows} x {found[0][1]} without a name takes the matrix rule, but "
        "looks like an embedding or a head, which belongs to the rest; give the optimizer the "
        "module or model.named_parameters() (in Hugging Face's Trainer: rode.trainer_factory), or "
        'set rule="rest" or "matrix" in its group',
        stacklevel=4,
    )
