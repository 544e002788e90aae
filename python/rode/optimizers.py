# SPDX-License-Identifier: Apache-2.0
"""The matrix optimizers: one class each, with its recurrence. Options left None take the default
that `rode optimizers` prints. Written by tools/python_classes.py: edit the header or the option
table of the engine instead."""

import datetime

import torch

from rode._base import EngineOptimizer, Group, Params, given

__all__ = [
    "MARSM",
    "Muon",
    "Muown",
    "RODE",
    "SOAP",
]


class RODE(EngineOptimizer):
    r"""RODE: the radius and the direction of every matrix follow separate rules::

        Xu, Qu, Sun, Zhuo: "RODE: A Radial-Orthogonal Decoupled Engine for Optimization", 2026,
        Algorithm 1. For a matrix W with gradient g and raw buffer B:

          rho = ||W||,  U = W / rho,  P(X) = X - <X,U> U                 held if rho <= eps
          B'  = momentum * P(B) + g
          s   = <B',U> = <g,U>
          M   = P(B') = B' - s U
          v   = momentum * v + ||P(g)|| + eps,  gamma = clip(||M||/v, snr_min, 1)    (snr)
          X_0 = M / ||M||                                                no direction if <= eps_ns
          X_k+1 = P[a X + X (b A + c A^2)],  A = X^T X                   ns_steps times
          Q = X_K,  q = ||Q||,  D = Q / q,  theta = lr * gamma * q
          rho' = max(rho - lr_rho * s, floor * rho)                      radius = learned
          U'  = U cos(theta) - D sin(theta)                              direction = geodesic
          W'  = rho' U',  B <- B'

        Variants:
          nesterov               X_0 from momentum * M + P(g)
          reproject = guarded    after each reprojection except the last, X is multiplied by
                                 min(1, 1.25 / (1.2024 + |t|)), t = <X,U>: the published
                                 iteration can diverge; this one is bounded in exact arithmetic
                                 (tested in fp32, bf16 and fp16). While |t| <= 0.0476 they are
                                 equal bit for bit.
                                 Other coefficients have numbers of their own (docs/numerics.md)
          reproject = every      exactly Algorithm 1
          reproject = final      one reprojection, after the last iteration
          coefficients = four    X_0 is divided by sqrt(||X_0^T X_0||_F) as well; four iterations
          radius = adaptive      a <- 0.9 a + 0.1 s,  b <- 0.95 b + 0.05 s^2, bias-corrected;
                                 rho' = max(rho exp(-lr_rho a / (sqrt(b) + eps)), floor * rho)
          radius = fixed         rho' = the norm at construction
          radius_brake           an outward step of rho (learned: -lr_rho s > 0; adaptive: the exponent)
                                 is multiplied by it
          radius_pull            the exponent of an adaptive radius below N = sqrt(fan-out) gains min(1,
                                 radius_pull * phi) log(N / rho); phi = lr * gamma, with scale = kernel
                                 times sqrt(min(fan-out, fan-in)). Not without a direction, with
                                 lr_rho = 0, or of a matrix that began at zero
          radius_scope = rows    every row W_i has rho_i, U_i, s_i and rho'_i of its own, and P projects
                                 row by row; N = 1. Newton-Schulz sees the whole matrix, without a
                                 projection inside (needs reproject = final). With m rows, m = fan-out,
                                 Q_i = P(X_K)_i, q_i = ||Q_i||, theta_i = lr * gamma * sqrt(m) * q_i:
                                 of equal rows the same turn as with one radius. v and gamma stay one
                                 per matrix; rows of norm <= eps are held
          scale = angle          theta = lr * gamma * q / sqrt(min(fan-out, fan-in)), so that the angle
                                 does not grow with the width
          direction = retraction U' = (U - theta D) / ||U - theta D||
          direction = fixed      U' = U
          conditioner = none     Q = X_0, q = 1
          normalize = rows       the rows of Q as Muon's (rode/optim/muon.h; row_eps = 1e-8), then
                                 Q <- P(Q); without a direction, v stays
          on_zero = rest         a matrix with rho <= eps at construction (LoRA's B) has no direction: it
                                 is updated by AdamW from then on; the state records it for resumed runs
          on_zero = start        its first start that is not zero gives it one, W' = -theta L D, with
                                 L = sqrt(m n) times the median root mean square of RODE's matrices that
                                 are not zero, else 1 / sqrt(fan-in); L is state (docs/numerics.md)
          on_zero = hold         it is held, as in Algorithm 1

        cautious_decay is the rest's (rode/optim/adamw.h): matrices have no decay.
        Deviations from the paper: the defaults are not the published ones (scale = angle, adaptive
        radius, radius_pull, Nesterov, `guarded`, on_zero = rest); preset "paper" (RodeOptions::paper())
        is Algorithm 1. A start below 2^-23 of its terms (a gradient along W, to rounding) has no
        direction (docs/numerics.md). State: 4 bytes per matrix parameter (momentum), a few scalars per
        matrix or, with radius_scope = rows, per row of the fan-out; with normalize = rows 4 bytes per
        row.

    A scheduler moves ``lr``; ``lr_rho`` follows as lr_rho * lr / initial_lr, unless
    ``couple_lr_rho`` is False.

    ``preset="paper"`` is the published algorithm with its rates; options that are given win over a
    preset's.

    What is not a matrix is stepped by AdamW with ``lr_rest``, ``weight_decay_rest``,
    ``betas_rest`` and ``eps_rest``: a group of its own where a module is given. Unless it is set,
    ``lr_rest`` is its default times lr / default lr.

    ``process_group`` (True: all processes) deals the parameters out: each process steps its share,
    keeps state for that alone and gets the others' weights; ``timeout``, in seconds, bounds each
    wait for them (docs/distributed.md).
    """

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor | None = None,
        lr_rho: float | None = None,
        *,
        scale: str | None = None,
        momentum: float = 0.9,
        radius: str | None = None,
        radius_brake: float = 1.0,
        radius_pull: float = 0.6,
        radius_scope: str = "matrix",
        direction: str = "geodesic",
        conditioner: str = "newton_schulz",
        reproject: str | None = None,
        ns_steps: int | None = None,
        coefficients: str = "jordan",
        ns_dtype: str = "auto",
        ns_form: str = "auto",
        normalize: str = "none",
        row_beta: float = 0.95,
        nesterov: bool | None = None,
        snr: bool | None = None,
        snr_min: float = 0.01,
        floor: float = 1e-6,
        eps: float = 1e-12,
        eps_ns: float = 1e-12,
        on_zero: str | None = None,
        splits: str = "",
        lr_rest: float | None = None,
        weight_decay_rest: float = 0.0009,
        betas_rest: tuple[float, float] = (0.9, 0.95),
        eps_rest: float = 1e-8,
        cautious_decay: bool = False,
        rounding: str = "stochastic",
        state_dtype: str = "fp32",
        state_rounding: str = "nearest",
        seed: int = 0,
        preset: str | None = None,
        on_non_finite: str = "refuse",
        couple_lr_rho: bool = True,
        process_group: Group = None,
        timeout: float | datetime.timedelta | None = None,
        route: str = "auto",
    ) -> None:
        super().__init__(params, "rode", route, given(locals()))


class Muon(EngineOptimizer):
    r"""Muon: orthogonalised momentum, with the original or the RMS-matched scale::

        Jordan et al., "Muon", 2024; Liu et al., "Muon is scalable for LLM training", 2025.
        For a matrix W (m x n, m = fan-out) with gradient g and buffer B:

          B <- momentum * B + (1 - momentum) g
          S  = (1 - momentum) g + momentum * B   (nesterov), else B
          O  = NS(S / max(||S||, eps))           coefficients = four: NS(X / sqrt(||X^T X||_F)) of that X
          normalize = rows (NorMuon; Li et al., 2025): row i of O, of n elements, row_eps = 1e-8:
            v_i <- row_beta v_i + (1 - row_beta) ||O_i||^2 / n,  O'_i = O_i / (sqrt(v_i) + row_eps)
            O <- O' ||O|| / ||O'||;  without a momentum to follow (O = 0), v stays
          W <- (1 - lr * weight_decay) W - lr * scale * O
          scale: original sqrt(max(1, m/n)),  rms 0.2 sqrt(max(m, n))

        cautious_decay: only elements with O W >= 0 decay (rode/optim/adamw.h), and so it is for the
          rest; not with constraint = normproj and weight_decay > 0
        constraint = normproj:  then W <- R W / ||W||, R = ||W|| at construction
        constraint = hyperball: W <- R Norm(W - lr R Norm(O)), no decay (Wen et al., 2026)

        Deviations: none from torch.optim.Muon except the precision of the products.
        State: 4 bytes per matrix parameter; with normalize = rows 4 bytes per row of the fan-out.

    What is not a matrix is stepped by AdamW with ``lr_rest``, ``weight_decay_rest``,
    ``betas_rest`` and ``eps_rest``: a group of its own where a module is given. Unless it is set,
    ``lr_rest`` is its default times lr / default lr.

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
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int | None = None,
        coefficients: str = "jordan",
        ns_dtype: str = "auto",
        ns_form: str = "auto",
        normalize: str = "none",
        row_beta: float = 0.95,
        eps: float = 1e-7,
        scale: str = "original",
        constraint: str = "none",
        splits: str = "",
        lr_rest: float | None = None,
        weight_decay_rest: float = 0.0009,
        betas_rest: tuple[float, float] = (0.9, 0.95),
        eps_rest: float = 1e-8,
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
        super().__init__(params, "muon", route, given(locals()))


class Muown(EngineOptimizer):
    r"""Muown: Muon on the direction of every row, Adam on its length::

        Lion, Huebler, Li, Orvieto, He, "Muown: Row-norm control for Muon optimization", 2026
        (arXiv 2605.10797), as in the authors' code (kcc-lion/muown, optim/muown.py). For a matrix W
        (m x n, m = fan-out) with gradient G, every row i is W_i = g_i v_i / n_i, n_i = ||v_i||; at the
        start g_i = n_i = ||W_i||:

          u_i = W_i / g_i,  s_i = <G_i, u_i>,  D_i = (g_i / n_i) (G_i - s_i u_i)
          B <- momentum * B + D
          S  = D + momentum * B   (nesterov), else B
          O  = NS(S / (||S|| + eps))             coefficients = four: NS(X / sqrt(||X^T X||_F)) of that X
          v'_i = n_i u_i - lr * 0.2 sqrt(max(m, n)) O_i,  n'_i = ||v'_i||
          a_i <- beta1 a_i + (1 - beta1) s_i,  b_i <- beta2 b_i + (1 - beta2) s_i^2, bias-corrected
          g'_i = g_i - lr_rho a_i / (sqrt(b_i) + eps_radius)
          W'_i = g'_i v'_i / n'_i - lr * weight_decay * W_i;  with decay g'_i <- ||W'_i||

        Deviations from the authors' code: products may be fp32; fused matrices are split where `splits`
        says so, not where m = 3 n; |g_i| is ||W_i|| as stored (the state keeps the sign), so that rows
        that somebody else has scaled are taken as they are; a row of zeros, which has no direction, is
        held, and a matrix that is zero at construction is the rest's. lr_rho is an option; there it is
        lr, and here it stays 1e-3 where only lr is given. lr is 1e-3 (there 3e-4, set by experiment),
        the rest's weight decay 9e-4 (there 0), and their variant for several processes, which decays g
        too, is not taken over. State: 4 bytes per matrix parameter, 16 bytes per row of the fan-out.

    A scheduler moves ``lr``; ``lr_rho`` follows as lr_rho * lr / initial_lr, unless
    ``couple_lr_rho`` is False.

    What is not a matrix is stepped by AdamW with ``lr_rest``, ``weight_decay_rest``,
    ``betas_rest`` and ``eps_rest``: a group of its own where a module is given. Unless it is set,
    ``lr_rest`` is its default times lr / default lr.

    ``process_group`` (True: all processes) deals the parameters out: each process steps its share,
    keeps state for that alone and gets the others' weights; ``timeout``, in seconds, bounds each
    wait for them (docs/distributed.md).
    """

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor | None = None,
        lr_rho: float | None = None,
        weight_decay: float = 0.0,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        betas_radius: tuple[float, float] = (0.9, 0.95),
        eps_radius: float = 1e-8,
        ns_steps: int | None = None,
        coefficients: str = "jordan",
        ns_dtype: str = "auto",
        ns_form: str = "auto",
        eps: float = 1e-7,
        splits: str = "",
        lr_rest: float | None = None,
        weight_decay_rest: float = 0.0009,
        betas_rest: tuple[float, float] = (0.9, 0.95),
        eps_rest: float = 1e-8,
        rounding: str = "stochastic",
        state_dtype: str = "fp32",
        state_rounding: str = "nearest",
        seed: int = 0,
        on_non_finite: str = "refuse",
        couple_lr_rho: bool = True,
        process_group: Group = None,
        timeout: float | datetime.timedelta | None = None,
        route: str = "auto",
    ) -> None:
        super().__init__(params, "muown", route, given(locals()))


class SOAP(EngineOptimizer):
    r"""SOAP: Adam in the slowly changing eigenbasis of Shampoo's preconditioner::

        Vyas et al., "SOAP: Improving and stabilizing Shampoo using Adam", 2025. For a tensor
        W of rank >= 2 with gradient G; GG_i is G contracted with itself over all modes except i:

          first gradient: L_i <- (1 - beta2) GG_i, Q_i = eigenvectors of L_i, descending;
                          the weight does not change
          then, with k = 1, 2, ... counting the gradients after the first:
          G' = G rotated by every Q_i^T
          m <- beta1 m + (1 - beta1) G',   v <- beta2 v + (1 - beta2) G'^2
          N  = m / (sqrt(v) + eps), rotated back by every Q_i
          W <- W - lr sqrt(1 - beta2^k) / (1 - beta1^k) N,   then W <- (1 - lr * weight_decay) W
          L_i <- beta2 L_i + (1 - beta2) GG_i
          every precondition_frequency-th k: columns of Q_i sorted by diag(Q_i^T L_i Q_i),
            v permuted the same way, Q_i <- qr(L_i Q_i), m rotated from the old basis to the new

        A mode longer than max_precond_dim keeps the identity. Tensors are not flattened.
        Deviations: m is rotated only when the basis changes, which equals the authors' round
        trip at every step in exact arithmetic; `step` counts the first gradient too.
        State: 8 bytes per parameter and 8 bytes per element of each mode's square factor.

    What is not a matrix is stepped by AdamW with ``lr_rest``, ``weight_decay_rest``,
    ``betas_rest`` and ``eps_rest``: a group of its own where a module is given. Unless it is set,
    ``lr_rest`` is its default times lr / default lr.

    ``process_group`` (True: all processes) deals the parameters out: each process steps its share,
    keeps state for that alone and gets the others' weights; ``timeout``, in seconds, bounds each
    wait for them (docs/distributed.md).
    """

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor | None = None,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        precondition_frequency: int = 10,
        max_precond_dim: int = 10000,
        lr_rest: float | None = None,
        weight_decay_rest: float = 0.0009,
        betas_rest: tuple[float, float] = (0.9, 0.95),
        eps_rest: float = 1e-8,
        rounding: str = "stochastic",
        seed: int = 0,
        on_non_finite: str = "refuse",
        process_group: Group = None,
        timeout: float | datetime.timedelta | None = None,
        route: str = "auto",
    ) -> None:
        super().__init__(params, "soap", route, given(locals()))


class MARSM(EngineOptimizer):
    r"""MARS-M: Muon on a variance-reduced gradient (approximate mode)::

        Liu et al., "MARS-M: When variance reduction meets matrices", 2025. With c = gamma *
        momentum / (1 - momentum), G the gradient and G_prev the previous one (initially 0):

          C  = G + c (G - G_prev);   if ||C|| > 1: C <- C / ||C||
          M <- momentum * M + (1 - momentum) C
          O  = NS(M / (||M|| + eps))             coefficients = four: NS(X / sqrt(||X^T X||_F)) of that X
          normalize = rows: as Muon's (rode/optim/muon.h); row_eps = 1e-8
          W <- (1 - lr * weight_decay) W - lr * 0.2 sqrt(max(m, n)) O
          G_prev <- G

        cautious_decay: only elements with O W >= 0 decay (rode/optim/adamw.h), and so it is for the
        rest.
        Deviations: none. State: 8 bytes per matrix parameter; with normalize = rows 4 bytes per row of
        the fan-out.

    What is not a matrix is stepped by AdamW with ``lr_rest``, ``weight_decay_rest``,
    ``betas_rest`` and ``eps_rest``: a group of its own where a module is given. Unless it is set,
    ``lr_rest`` is its default times lr / default lr.

    ``process_group`` (True: all processes) deals the parameters out: each process steps its share,
    keeps state for that alone and gets the others' weights; ``timeout``, in seconds, bounds each
    wait for them (docs/distributed.md).
    """

    def __init__(
        self,
        params: Params,
        lr: float | torch.Tensor | None = None,
        weight_decay: float = 0.01,
        *,
        momentum: float = 0.95,
        gamma: float = 0.025,
        ns_steps: int | None = None,
        coefficients: str = "jordan",
        ns_dtype: str = "auto",
        ns_form: str = "auto",
        normalize: str = "none",
        row_beta: float = 0.95,
        eps: float = 1e-7,
        lr_rest: float | None = None,
        weight_decay_rest: float = 0.0009,
        betas_rest: tuple[float, float] = (0.9, 0.95),
        eps_rest: float = 1e-8,
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
        super().__init__(params, "mars-m", route, given(locals()))
