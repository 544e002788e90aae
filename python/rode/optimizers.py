# SPDX-License-Identifier: Apache-2.0
"""The matrix optimizers: one class each, with its recurrence. Options left None take the default
that `rode optimizers` prints: the rate selected for a Qwen2-style language model of 114M
parameters."""

from collections.abc import Iterable
from typing import Any

import torch

from rode._base import EngineOptimizer

Params = torch.nn.Module | Iterable[Any]


def given(arguments: dict[str, Any], *omitted: str) -> dict[str, Any]:
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
    ``radius`` is learned (above), adaptive or fixed. ``normalize="rows"`` normalises the rows of X
    as in `Muon` and projects X once more. Deviation from the paper: ``reproject`` is guarded, which
    keeps the iteration from diverging.

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
        normalize: str = "none",
        row_beta: float = 0.95,
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
        options = given(locals(), "couple_lr_rho")
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
    W <- R Norm(W - lr R Norm(O)); R is the norm at the start. ``normalize="rows"`` (NorMuon, Li et
    al. 2025) divides row i of O by sqrt(v_i) + 1e-8, v_i <- row_beta v_i + (1 - row_beta) mean(O_i^2),
    and brings O back to its norm. The rest: AdamW, as in `RODE`.
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
        normalize: str = "none",
        row_beta: float = 0.95,
        splits: str = "",
        rounding: str = "nearest",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        route: str = "language",
    ) -> None:
        rms = scale == "rms"
        projected = rms and constraint == "normproj"
        options = given(locals(), "rms", "projected")
        name = "muon-normproj" if projected else "muon-rms" if rms else "muon"
        super().__init__(params, name, route, options)


class MARSM(EngineOptimizer):
    r"""MARS-M (Liu et al. 2025), approximate: Muon on a variance-reduced gradient. With
    c = gamma * momentum / (1 - momentum), G the gradient and G_prev the one before::

        C  = G + c (G - G_prev);   if ||C|| > 1: C <- C / ||C||
        M <- momentum * M + (1 - momentum) C
        O  = NS(M / (||M|| + eps))
        W <- (1 - lr * weight_decay) W - lr * 0.2 sqrt(max(m, n)) O

    ``normalize="rows"`` and the rest: as in `Muon`.
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
        normalize: str = "none",
        row_beta: float = 0.95,
        rounding: str = "nearest",
        state_dtype: str = "fp32",
        seed: int = 0,
        on_non_finite: str = "refuse",
        route: str = "language",
    ) -> None:
        super().__init__(params, "mars-m", route, given(locals()))


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
        super().__init__(params, "soap", route, given(locals()))
