# SPDX-License-Identifier: Apache-2.0
"""Which parameters of a module take the matrix rule: describes the modules to the engine, which
decides."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from rode import _engine

ROUTES = ("auto", "language", "vision", "all_matrices", "lora")
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
# Modules whose two-dimensional weights are maps between features.
_PROJECTIONS = (
    nn.Linear,
    nn.Bilinear,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
)

# Fewer rows are a layer's as well as a vocabulary's.
_VOCABULARY_ROWS = 8192


def _is_transposed(module: nn.Module) -> bool:
    """Hugging Face's Conv1D and some of its experts, which store (in, out)."""
    if type(module).__name__ == "Conv1D":
        return hasattr(module, "nf")
    up, down = (getattr(module, name, None) for name in ("gate_up_proj", "down_proj"))
    if not (isinstance(up, torch.Tensor) and isinstance(down, torch.Tensor)):
        return getattr(module, "is_transposed", None) is True
    if is_lazy(up) or is_lazy(down) or up.dim() != 3 or down.dim() != 3:
        return False
    # (E, features, 2 hidden) and (E, hidden, features); otherwise the last two the other way round.
    return up.shape[1] == down.shape[2] and up.shape[2] == 2 * down.shape[1]


def _own_head(model: nn.Module) -> nn.Module | None:
    """The projection to the vocabulary, where the model has a word for it."""
    getter = getattr(model, "get_output_embeddings", None)
    try:
        head = getter() if callable(getter) else None
    except NotImplementedError:
        return None
    return head if isinstance(head, nn.Module) else None


def _described(module: nn.Module, head: nn.Module | None) -> tuple[str, str, int]:
    """Role, type and width of a module, as the engine asks for them."""
    kind = type(module).__name__
    if isinstance(module, _EMBEDDINGS):
        return "embedding", kind, module.num_embeddings
    if module is head:
        return "head", kind, 0
    if isinstance(module, nn.Linear):
        return "other", kind, module.out_features
    if isinstance(module, _CONVOLUTIONS):
        return "convolution", kind, 0
    known = isinstance(module, _PROJECTIONS) or _is_transposed(module)
    return "other" if known else "by_name", kind, 0


def param_groups(
    model: nn.Module,
    route: str = "auto",
    overrides: Mapping[str, str] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """The groups that `rode.RODE(model)` makes, to look at and to edit.

    route: "language": two dimensions, neither embedding nor head, and the weights of experts, (E,
    m, n), which are E matrices (layout="experts_out_in"); "vision": two or more dimensions; both without tensors of one column, such as the gains of weight_norm;
    "all_matrices": two dimensions; "lora": the two-dimensional tensors named lora_*; "auto": "lora"
    where there are such, else "language" where there is an embedding, else "vision" where there are
    convolutions, else "language". overrides: from patterns of names ('*', '?') to "matrix", "rest"
    or "frozen"; the first that matches wins. Further options go into the groups of the matrices.

    A parameter under several names (tied weights) is one, under its first name. Those with
    requires_grad=False are left out. `reasons` of a group are for `routing_table`.
    """
    if route not in ROUTES:
        raise _engine.OptionError(f"[routing] route = {route!r}; expected one of {ROUTES}")
    head = _own_head(model)
    modules: dict[int, int] = {}  # by identity, to the place in `described`
    described: list[tuple[str, str, int]] = []
    tensors: dict[torch.Tensor, list[tuple[str, int]]] = {}  # name and module of every place
    transposed: set[torch.Tensor] = set()
    for prefix, module in model.named_modules(remove_duplicate=False):
        index = modules.setdefault(id(module), len(described))
        if index == len(described):
            described.append(_described(module, head))
        for local, p in module.named_parameters(recurse=False, remove_duplicate=False):
            tensors.setdefault(p, []).append((f"{prefix}.{local}" if prefix else local, index))
            if _is_transposed(module):
                transposed.add(p)
    given = [(list(p.shape), places) for p, places in tensors.items()]
    treatments = [(pattern, str(treatment)) for pattern, treatment in (overrides or {}).items()]
    stepped = [p.numel() if p.requires_grad and not is_lazy(p) else 0 for p in tensors]
    routed, share = _engine.route_model(described, given, route, treatments, stepped)
    taken, why = _engine.choose_route(described, given, route)
    reasons = Reasons()
    reasons.choice = f"route {taken}, because {why}" if why else f"route {taken}"
    groups: dict[str, dict[str, Any]] = {
        layout: {
            "params": [],
            "reasons": reasons,
            "rule": "matrix",
            "layout": layout,
            **options,
        }
        for layout in ("out_in", "in_out", "experts_out_in", "experts_in_out")
    }
    groups["rest"] = {"params": [], "reasons": reasons, "rule": "rest"}
    for (p, places), (treatment, reason, experts) in zip(tensors.items(), routed, strict=True):
        if treatment == "frozen" or not p.requires_grad:
            continue
        if treatment == "matrix":
            treatment = ("experts_" if experts else "") + (
                "in_out" if p in transposed else "out_in"
            )
        name = places[0][0]
        groups[treatment]["params"].append((name, p))
        reasons[name] = reason
    reasons.rest_share = share
    return [group for group in groups.values() if group["params"]]


class Reasons(dict[str, str]):
    """Of the routing of a model, by parameter; and messages about it as a whole."""

    choice = ""
    # Of the parameters outside of embeddings, head and overrides, the part that is not the matrices'.
    rest_share = 0.0

    def after(self, others: Mapping[str, str]) -> "Reasons":
        """These and those of earlier groups."""
        both = Reasons({**others, **self})
        both.choice, both.rest_share = self.choice, self.rest_share
        return both


def warn_of_rest(share: float, choice: str) -> None:
    if share <= 0.5:
        return
    warnings.warn(
        f"[routing] {share:.0%} of the parameters outside embeddings and head are left to AdamW "
        f"({choice}); choose another route, or set overrides of rode.param_groups; "
        "optimizer.routing_table() shows why",
        stacklevel=4,
    )


def warn_of_vocabularies(groups: list[dict[str, Any]]) -> None:
    """Warns where the matrix rule gets a tensor without a name that looks like an embedding or a
    head: it has the most rows of all, 8192 or more, at most two tensors have as many, and nothing
    takes as many features in.

    A layer's outputs are another layer's inputs: a matrix with as many columns is there, or, where
    layers are fused into one (gate and up; query, key and value; the gates of an LSTM), with a
    half, a third or a quarter of them. Other shapes of layers come back in every block. Nothing reads a vocabulary, and a model has
    one embedding and one head.
    """
    shapes = [
        tuple(p.shape)
        for group in groups
        if group["rule"] == "auto"
        and group["route"] in ("auto", "language")
        and "param_names" not in group
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
