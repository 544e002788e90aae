# SPDX-License-Identifier: Apache-2.0
"""The optimizers that step everything by one rule: one class each, with its recurrence. Options left
None take the default that `rode optimizers` prints; AdamW and SGD have torch's."""

from typing import Any

import torch

from rode._base import EngineOptimizer
from rode._engine import OptionError
from rode.optimizers import Params, given


def refuse_none(name: str, **arguments: Any) -> None:
    """None means the engine's default elsewhere; where defaults are torch's, it means nothing."""
    for key, value in arguments.items():
        if value is None:
            raise OptionError(f"[{name}] option '{key}': expected a number, got None")


class AdEMAMix(EngineOptimizer):
    r"""AdEMAMix (Pagliardini et al. 2024): Adam with a second, slow momentum. With t counting a
    parameter's gradients from 1::

        m1 <- beta1 m1 + (1 - beta1) g,   m2 <- beta3 m2 + (1 - beta3) g
        v  <- beta2 v + (1 - beta2) g^2
        W  <- W - lr [ (m1 / (1 - beta1^t) + alpha m2) / (sqrt(v) / sqrt(1 - beta2^t) + eps)
                       + weight_decay W ]

    ``warmup_steps`` > 0 raises alpha and beta3 to their values over so many steps. One rule for
    all; given a module, what is not a matrix has ``lr_rest`` and ``weight_decay_rest``.
    """

    _delegates = False

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor | None = None,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        alpha: float = 2.0,
        warmup_steps: int = 0,
        lr_rest: float | None = None,
        weight_decay_rest: float = 9e-4,
        rounding: str = "nearest",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        route: str = "language",
    ) -> None:
        super().__init__(params, "ademamix", route, given(locals()))


class Adafactor(EngineOptimizer):
    r"""Adafactor (Shazeer & Stern 2018) with an explicit rate: no relative step, no parameter
    scaling, no warm-up. With t counting a parameter's gradients from 1::

        b = 1 - t^decay_rate,   S = g^2 + eps
        row <- b row + (1 - b) mean over columns of S,   col likewise over rows
        u = g (row / mean(row))^-1/2 col^-1/2        (rank < 2: v <- b v + (1 - b) S, u = g v^-1/2)
        u <- u / max(1, RMS(u) / clip_threshold)
        W <- (1 - lr * weight_decay) W - lr u

    One rule for all; given a module, what is not a matrix has ``lr_rest`` (unset: lr) and
    ``weight_decay_rest``.
    """

    _delegates = False

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor | None = None,
        weight_decay: float = 0.0,
        *,
        eps: float = 1e-30,
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        lr_rest: float | None = None,
        weight_decay_rest: float = 0.0,
        rounding: str = "nearest",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        route: str = "language",
    ) -> None:
        super().__init__(params, "adafactor", route, given(locals()))


class AdamW(EngineOptimizer):
    r"""AdamW (Loshchilov & Hutter 2019), torch.optim.AdamW to rounding. With t counting a
    parameter's gradients from 1::

        W <- (1 - lr * weight_decay) W
        m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2
        W <- W - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    g is the negated gradient where ``maximize``. One rule for all, and one rate: given a module,
    what is not a matrix has ``lr_rest`` and ``weight_decay_rest`` where these are set.

    Arguments are torch's, in its order and with its defaults (those of the task files and of the
    command line belong to a language model of 114M parameters). ``foreach``, ``capturable``,
    ``differentiable`` and ``fused`` choose between torch's loops and mean nothing here;
    ``amsgrad`` is refused. Checkpoints are torch's: either class loads those of the other.
    """

    _delegates = False
    _torch_names: dict[str, str] | None = {}

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        lr_rest: float | torch.Tensor | None = None,
        weight_decay_rest: float | None = None,
        rounding: str = "nearest",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        route: str = "language",
    ) -> None:
        refuse_none("adamw", lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        lr_rest = lr if lr_rest is None else lr_rest
        weight_decay_rest = weight_decay if weight_decay_rest is None else weight_decay_rest
        of_torch = {
            "amsgrad": amsgrad,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
        }
        options = given(locals(), "of_torch", *of_torch)
        super().__init__(params, "adamw", route, options, of_torch)


class Lion(EngineOptimizer):
    r"""Lion (Chen et al. 2023): the sign of an interpolated momentum::

        u  = sign(beta1 m + (1 - beta1) g)
        W <- W - lr (u + weight_decay W)
        m <- beta2 m + (1 - beta2) g

    One rule for all; given a module, what is not a matrix has ``lr_rest`` (unset: lr) and
    ``weight_decay_rest``.
    """

    _delegates = False

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor | None = None,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.1,
        *,
        lr_rest: float | None = None,
        weight_decay_rest: float = 0.1,
        rounding: str = "nearest",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        route: str = "language",
    ) -> None:
        super().__init__(params, "lion", route, given(locals()))


class SGD(EngineOptimizer):
    r"""SGD with heavy-ball momentum and coupled decay, torch.optim.SGD to rounding::

        d  = g + weight_decay W
        B <- momentum * B + d
        W <- W - lr B               (nesterov: W - lr (d + momentum * B))

    g is the negated gradient where ``maximize``. One rule for all, and one rate: given a module,
    what is not a matrix has ``lr_rest`` and ``weight_decay_rest`` where these are set.

    Arguments, defaults and checkpoints are torch's, as in `AdamW`; ``dampening`` is refused, and
    ``foreach``, ``differentiable`` and ``fused`` mean nothing.
    """

    _delegates = False
    _torch_names: dict[str, str] | None = {"momentum": "momentum_buffer"}

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | torch.Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        lr_rest: float | torch.Tensor | None = None,
        weight_decay_rest: float | torch.Tensor | None = None,
        rounding: str = "nearest",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        route: str = "language",
    ) -> None:
        refuse_none("sgd", lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and momentum == 0:
            raise OptionError("[sgd] nesterov = True with momentum = 0; expected momentum > 0")
        lr_rest = lr if lr_rest is None else lr_rest
        weight_decay_rest = weight_decay if weight_decay_rest is None else weight_decay_rest
        of_torch = {
            "dampening": dampening,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        options = given(locals(), "of_torch", *of_torch)
        super().__init__(params, "sgd", route, options, of_torch)
