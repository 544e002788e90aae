# SPDX-License-Identifier: Apache-2.0
"""The optimizers: one class each, with its recurrence. Options left None take the default that
`rode optimizers` prints: the rate selected for a Qwen2-style language model of 114M parameters.
AdamW and SGD have torch's defaults."""

from collections.abc import Iterable
from typing import Any

import torch

from rode._base import EngineOptimizer
from rode._engine import OptionError

Params = torch.nn.Module | Iterable[Any]


def _given(arguments: dict[str, Any], *omitted: str) -> dict[str, Any]:
    """The options among a constructor's arguments."""
    skipped = {"self", "params", "route", "__class__", *omitted}
    return {key: value for key, value in arguments.items() if key not in skipped}


class RODE(EngineOptimizer):
    r"""RODE (Xu, Qu, Sun, Zhuo 2026): radius and direction of every matrix learn by rules of
    their own. For a matrix W with gradient g and raw buffer B::

        rho = ||W||,  U = W / rho,  P(X) = X - <X,U> U
        B   = momentum * P(B) + g,  s = <g,U>,  M = B - s U
        X   = M / ||M||, then ns_steps times  X <- P[a X + X (b A + c A^2)],  A = X^T X
        q   = ||X||,  D = X / q,  theta = lr * q
        rho' = max(rho - lr_rho * s, floor * rho)
        W   = rho' (U cos(theta) - D sin(theta))

    ``snr`` multiplies theta by clip(||M|| / v, snr_min, 1), v = momentum * v + ||P(g)|| + eps.
    ``radius`` is learned (above), adaptive or fixed. Deviation from the paper: ``reproject``
    is guarded, which keeps the iteration from diverging.

    A scheduler moves ``lr``; ``lr_rho`` follows as lr_rho * lr / initial_lr, unless
    ``couple_lr_rho`` is False. What is not a matrix is stepped by AdamW with ``lr_rest``,
    ``weight_decay_rest``, ``betas_rest``, ``eps_rest``: a group of its own where a module is given.
    """

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor | None = None,
        lr_rho: float | None = None,
        *,
        lr_rest: float | None = None,
        weight_decay_rest: float = 9e-4,
        betas_rest: tuple[float, float] = (0.9, 0.95),
        eps_rest: float = 1e-8,
        momentum: float = 0.9,
        radius: str = "learned",
        direction: str = "geodesic",
        conditioner: str = "newton_schulz",
        reproject: str = "guarded",
        ns_steps: int = 5,
        coefficients: str = "jordan",
        ns_dtype: str = "auto",
        ns_form: str = "auto",
        nesterov: bool = False,
        snr: bool = False,
        snr_min: float = 0.01,
        floor: float = 1e-6,
        eps: float = 1e-12,
        eps_ns: float = 1e-12,
        splits: str = "",
        rounding: str = "nearest",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        couple_lr_rho: bool = True,
        route: str = "language",
    ) -> None:
        options = _given(locals(), "couple_lr_rho")
        name = "rode-snr" if snr else "rode-fixed" if radius == "fixed" else "rode"
        super().__init__(params, name, route, options, {"couple_lr_rho": couple_lr_rho})


class Muon(EngineOptimizer):
    r"""Muon (Jordan et al. 2024): orthogonalised momentum. For a matrix W, m x n, with buffer B::

        B <- momentum * B + (1 - momentum) g
        S  = (1 - momentum) g + momentum * B   (nesterov), else B
        O  = NS(S / max(||S||, eps))
        W <- (1 - lr * weight_decay) W - lr * scale * O

    ``scale``: original sqrt(max(1, m/n)), rms 0.2 sqrt(max(m, n)); m is the fan-out.
    ``constraint``: none; normproj, then W <- R W / ||W||; hyperball,
    W <- R Norm(W - lr R Norm(O)); R is the norm at the start. The rest: AdamW, as in `RODE`.
    """

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor | None = None,
        weight_decay: float = 0.0,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        scale: str = "original",
        constraint: str = "none",
        lr_rest: float | None = None,
        weight_decay_rest: float = 9e-4,
        betas_rest: tuple[float, float] = (0.9, 0.95),
        eps_rest: float = 1e-8,
        ns_steps: int = 5,
        eps: float = 1e-7,
        coefficients: str = "jordan",
        ns_dtype: str = "auto",
        ns_form: str = "auto",
        splits: str = "",
        rounding: str = "nearest",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        route: str = "language",
    ) -> None:
        rms = scale == "rms"
        projected = rms and constraint == "normproj"
        options = _given(locals(), "rms", "projected")
        name = "muon-normproj" if projected else "muon-rms" if rms else "muon"
        super().__init__(params, name, route, options)


class MARSM(EngineOptimizer):
    r"""MARS-M (Liu et al. 2025), approximate: Muon on a variance-reduced gradient. With
    c = gamma * momentum / (1 - momentum), G the gradient and G_prev the one before::

        C  = G + c (G - G_prev);   if ||C|| > 1: C <- C / ||C||
        M <- momentum * M + (1 - momentum) C
        O  = NS(M / (||M|| + eps))
        W <- (1 - lr * weight_decay) W - lr * 0.2 sqrt(max(m, n)) O

    The rest: AdamW, as in `RODE`.
    """

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor | None = None,
        weight_decay: float = 1e-2,
        *,
        momentum: float = 0.95,
        gamma: float = 0.025,
        lr_rest: float | None = None,
        weight_decay_rest: float = 9e-4,
        betas_rest: tuple[float, float] = (0.9, 0.95),
        eps_rest: float = 1e-8,
        ns_steps: int = 5,
        eps: float = 1e-7,
        coefficients: str = "jordan",
        ns_dtype: str = "auto",
        ns_form: str = "auto",
        rounding: str = "nearest",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        route: str = "language",
    ) -> None:
        super().__init__(params, "mars-m", route, _given(locals()))


class SOAP(EngineOptimizer):
    r"""SOAP (Vyas et al. 2025): Adam in the eigenbasis of Shampoo's factors. GG_i is G contracted
    with itself over all modes but i; k = 1, 2, ... counts the gradients after the first, which
    only sets L_i and Q_i::

        G' = G rotated by every Q_i^T
        m <- beta1 m + (1 - beta1) G',   v <- beta2 v + (1 - beta2) G'^2
        N  = m / (sqrt(v) + eps), rotated back by every Q_i
        W <- W - lr sqrt(1 - beta2^k) / (1 - beta1^k) N,   then W <- (1 - lr * weight_decay) W
        L_i <- beta2 L_i + (1 - beta2) GG_i
        every precondition_frequency-th k: Q_i <- qr(L_i Q_i), sorted; m, v brought along

    A mode longer than ``max_precond_dim`` keeps the identity. The rest: AdamW, as in `RODE`.
    """

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor | None = None,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        precondition_frequency: int = 10,
        max_precond_dim: int = 10000,
        lr_rest: float | None = None,
        weight_decay_rest: float = 9e-4,
        betas_rest: tuple[float, float] = (0.9, 0.95),
        eps_rest: float = 1e-8,
        rounding: str = "nearest",
        seed: int = 0,
        on_non_finite: str = "refuse",
        route: str = "language",
    ) -> None:
        super().__init__(params, "soap", route, _given(locals()))


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
        super().__init__(params, "ademamix", route, _given(locals()))


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
        super().__init__(params, "adafactor", route, _given(locals()))


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
        lr_rest = lr if lr_rest is None else lr_rest
        weight_decay_rest = weight_decay if weight_decay_rest is None else weight_decay_rest
        of_torch = {
            "amsgrad": amsgrad,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
        }
        options = _given(locals(), "of_torch", *of_torch)
        super().__init__(params, "adamw", route, options, of_torch)


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
        options = _given(locals(), "of_torch", *of_torch)
        super().__init__(params, "sgd", route, options, of_torch)
