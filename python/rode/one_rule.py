# SPDX-License-Identifier: Apache-2.0
"""The optimizers that step everything by one rule. Options left None take the default
that `rode optimizers` prints. Written by tools/python_classes.py: edit the header or the option
table of the engine instead."""

import datetime

import torch

from rode._base import EngineOptimizer, Group, Params, given
from rode._torch_twin import TorchTwin

__all__ = [
    "AdEMAMix",
    "Adafactor",
    "AdamW",
    "Lion",
    "SGD",
]


class AdEMAMix(EngineOptimizer):
    r"""AdEMAMix: Adam with a second, much slower momentum::

        Pagliardini et al., 2024. With t counting the parameter's gradients from 1:

          m1 <- beta1 m1 + (1 - beta1) g,   m2 <- beta3 m2 + (1 - beta3) g
          v  <- beta2 v + (1 - beta2) g^2
          W  <- W - lr [ (m1 / (1 - beta1^t) + alpha m2) / (sqrt(v) / sqrt(1 - beta2^t) + eps)
                         + weight_decay W ]

        warmup_steps = T > 0, while t < T: alpha_t = alpha t / T and
          beta3_t = f^-1((1 - t/T) f(beta1) + (t/T) f(beta3)),
          f(b) = ln(0.5) / ln(b + 1e-8) - 1,   f^-1(x) = 0.5^(1 / (x + 1))

        The rest uses the same rule; lr_rest is lr and weight_decay_rest weight_decay unless set.
        Deviations: none. State: 12 bytes per parameter.

    One rule, one rate and one decay for all; given a module, what is not a matrix has ``lr_rest``
    and ``weight_decay_rest`` where these are set.

    ``process_group`` (True: all processes) deals the parameters out: each process steps its share,
    keeps state for that alone and gets the others' weights; ``timeout``, in seconds, bounds each
    wait for them (docs/distributed.md).
    """

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor | None = None,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        alpha: float = 2.0,
        warmup_steps: int = 0,
        lr_rest: float | None = None,
        weight_decay_rest: float | None = None,
        rounding: str = "stochastic",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        process_group: Group = None,
        timeout: float | datetime.timedelta | None = None,
        route: str = "auto",
    ) -> None:
        super().__init__(params, "ademamix", route, given(locals()))


class Adafactor(EngineOptimizer):
    r"""Adafactor with an explicit rate: no relative step, no parameter scaling, no warm-up::

        Shazeer & Stern, 2018, as in Hugging Face transformers with relative_step, scale_parameter
        and warmup_init off. With t counting the parameter's gradients from 1:

          b = 1 - t^decay_rate,   S = g^2 + eps
          rank >= 2 (over the last two dimensions):
            row <- b row + (1 - b) mean over columns of S,   col likewise over rows
            u = g (row / mean(row))^-1/2 col^-1/2
          rank < 2: v <- b v + (1 - b) S,   u = g v^-1/2
          u <- u / max(1, RMS(u) / clip_threshold)
          W <- (1 - lr * weight_decay) W - lr u

        Deviations: none. State: rows + columns, or 4 bytes per parameter for rank < 2.

    One rule, one rate and one decay for all; given a module, what is not a matrix has ``lr_rest``
    and ``weight_decay_rest`` where these are set.

    ``process_group`` (True: all processes) deals the parameters out: each process steps its share,
    keeps state for that alone and gets the others' weights; ``timeout``, in seconds, bounds each
    wait for them (docs/distributed.md).
    """

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
        weight_decay_rest: float | None = None,
        rounding: str = "stochastic",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        process_group: Group = None,
        timeout: float | datetime.timedelta | None = None,
        route: str = "auto",
    ) -> None:
        super().__init__(params, "adafactor", route, given(locals()))


class AdamW(TorchTwin):
    r"""AdamW: Adam with decoupled weight decay::

        Loshchilov & Hutter, 2019. With t counting the parameter's gradients from 1:

          W <- (1 - lr * weight_decay) W
          m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2
          W <- W - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

        maximize: g is the negated gradient.
        cautious_decay (Chen et al., "Cautious Weight Decay", 2025): only the elements decay whose weight
        and update, what lr multiplies in the last line, do not have opposite signs: u W >= 0.
        The rest uses the same rule; lr_rest is lr and weight_decay_rest weight_decay unless set.
        Deviations: none (torch.optim.AdamW to rounding). State: 8 bytes per parameter.

    Arguments are torch's, in its order and with its defaults (those of the command line and of C++
    belong to a language model of 114M parameters); one rule and one rate for all, unless
    ``lr_rest`` and ``weight_decay_rest`` are set. ``foreach``, ``capturable``, ``differentiable``
    and ``fused`` choose between torch's loops and mean nothing here; ``amsgrad`` is refused.
    Checkpoints are torch's: either class loads those of the other.

    ``process_group`` (True: all processes) deals the parameters out: each process steps its share,
    keeps state for that alone and gets the others' weights; ``timeout``, in seconds, bounds each
    wait for them (docs/distributed.md).
    """

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
        weight_decay_rest: float | torch.Tensor | None = None,
        cautious_decay: bool = False,
        rounding: str = "stochastic",
        state_dtype: str = "fp32",
        state_rounding: str = "nearest",
        seed: int = 0,
        on_non_finite: str = "refuse",
        process_group: Group = None,
        timeout: float | datetime.timedelta | None = None,
        route: str = "auto",
    ) -> None:
        super().__init__(params, "adamw", route, given(locals()))


class Lion(EngineOptimizer):
    r"""Lion: the sign of an interpolated momentum::

        Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, Algorithm 2:

          u  = sign(beta1 m + (1 - beta1) g),   sign(0) = 0
          W <- W - lr (u + weight_decay W)
          m <- beta2 m + (1 - beta2) g

        cautious_decay: only elements with u W >= 0 decay (rode/optim/adamw.h).
        The rest uses the same rule; lr_rest is lr and weight_decay_rest weight_decay unless set.
        Deviations: none. State: 4 bytes per parameter.

    One rule, one rate and one decay for all; given a module, what is not a matrix has ``lr_rest``
    and ``weight_decay_rest`` where these are set.

    ``process_group`` (True: all processes) deals the parameters out: each process steps its share,
    keeps state for that alone and gets the others' weights; ``timeout``, in seconds, bounds each
    wait for them (docs/distributed.md).
    """

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor | None = None,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.1,
        *,
        lr_rest: float | None = None,
        weight_decay_rest: float | None = None,
        cautious_decay: bool = False,
        rounding: str = "stochastic",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        process_group: Group = None,
        timeout: float | datetime.timedelta | None = None,
        route: str = "auto",
    ) -> None:
        super().__init__(params, "lion", route, given(locals()))


class SGD(TorchTwin):
    r"""SGD with heavy-ball momentum and coupled weight decay, like torch.optim.SGD::

          d  = g + weight_decay W
          B <- momentum * B + d        (B = d at the first step: B starts at 0)
                                       (momentum = 0: B stays unchanged, and W - lr d)
          W <- W - lr B                (nesterov: W - lr (d + momentum * B))

        maximize: g is the negated gradient.
        The rest uses the same rule; lr_rest is lr and weight_decay_rest weight_decay unless set.
        Deviations: none. State: 4 bytes per parameter.

    Arguments are torch's, in its order and with its defaults (those of the command line and of C++
    belong to a language model of 114M parameters); one rule and one rate for all, unless
    ``lr_rest`` and ``weight_decay_rest`` are set. ``foreach``, ``differentiable`` and ``fused``
    choose between torch's loops and mean nothing here; ``dampening`` is refused. Checkpoints are
    torch's: either class loads those of the other.

    ``process_group`` (True: all processes) deals the parameters out: each process steps its share,
    keeps state for that alone and gets the others' weights; ``timeout``, in seconds, bounds each
    wait for them (docs/distributed.md).
    """

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
        rounding: str = "stochastic",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        process_group: Group = None,
        timeout: float | datetime.timedelta | None = None,
        route: str = "auto",
    ) -> None:
        super().__init__(params, "sgd", route, given(locals()))
