# SPDX-License-Identifier: Apache-2.0
"""Each option changes the result by more than the tolerance, as the oracle predicts."""

import pytest

import oracles
from compare import assert_weight, distance, follow
from problems import aligned, problem, with_soap_state

STEPS = 6


def matrices(steps=STEPS, **kwargs):
    return problem((40, 24), steps, **kwargs)


def vectors():
    return problem((50,), STEPS)


REST_ADAMW = [
    ("lr", 5e-3, {}, vectors),  # lr_rest is scaled with it
    ("lr_rest", 1e-2, {}, vectors),
    ("weight_decay_rest", 0.5, {}, vectors),
    ("betas_rest", (0.5, 0.95), {}, vectors),
    ("betas_rest", (0.9, 0.6), {}, vectors),
    ("eps_rest", 1e-2, {}, vectors),
]
REST_SAME_RULE = [
    ("lr", 5e-3, {}, vectors),  # lr_rest is lr
    ("lr_rest", 1.3e-2, {}, vectors),
    ("weight_decay", 0.5, {}, vectors),  # and weight_decay_rest weight_decay
    ("weight_decay_rest", 0.5, {}, vectors),
]
CAUTIOUS_REST = [("cautious_decay", True, {"weight_decay_rest": 0.5}, vectors)]
NEWTON_SCHULZ = [("ns_steps", 3, {}, matrices), ("ns_steps", 8, {}, matrices)]


def pushed_inwards():
    """Gradients along the weight: the radius shrinks as fast as lr_rho lets it."""
    p = matrices(1)
    p.grads = [(p.grads[0] + 20 * p.weight)]
    return p


def pushed_outwards():
    """Gradients against the weight: the radius grows."""
    p = matrices(2)
    p.grads = [g - 20 * p.weight for g in p.grads]
    return p


def too_short():
    """Weights far below the norm that a radius is pulled to."""
    p = matrices(2)
    p.weight = p.weight / 10
    return p


def big_rotation():
    return matrices(2)


def from_zero():
    p = matrices()
    p.weight[:] = 0
    return p


def silent_at_first():
    p = from_zero()
    for g in p.grads[:2]:
        g[:] = 0
    return p


def half_zero():
    """Of two blocks one: where the parameter as a whole is not zero, it is held."""
    p = matrices()
    p.weight[8:] = 0
    return p


def disturbed():
    return aligned((48, 16), 2)


RODE = [
    ("lr", 5e-3, {}, matrices),
    ("lr_rho", 5e-2, {}, matrices),
    ("lr_rho", 5e-2, {"radius": "adaptive"}, matrices),
    ("momentum", 0.5, {}, matrices),
    ("floor", 0.5, {"lr_rho": 1.0, "radius": "learned"}, pushed_inwards),
    ("floor", 0.99, {"lr_rho": 1.0, "radius": "adaptive"}, pushed_inwards),
    ("eps", 100.0, {"on_zero": "hold"}, matrices),  # above the norm: held
    ("on_zero", "hold", {}, from_zero),  # stays there
    ("on_zero", "start", {}, from_zero),
    ("on_zero", "start", {"scale": "kernel", "radius": "learned"}, from_zero),
    ("on_zero", "start", {"snr": True, "nesterov": False}, silent_at_first),
    ("on_zero", "start", {"radius": "fixed", "normalize": "rows"}, from_zero),
    ("on_zero", "start", {"conditioner": "none", "direction": "retraction"}, from_zero),
    ("on_zero", "start", {"coefficients": "four"}, from_zero),
    ("on_zero", "start", {"splits": "w=8+32"}, half_zero),
    ("on_zero", "hold", {"splits": "w=8+32", "on_zero": "start"}, half_zero),
    ("eps", 0.4, {"snr": True}, matrices),
    ("eps", 0.3, {"radius": "adaptive"}, matrices),
    ("eps_ns", 1e3, {}, matrices),  # above the momentum's norm: no direction
    ("reproject", "every", {}, disturbed),
    ("reproject", "final", {}, disturbed),
    ("nesterov", False, {}, matrices),
    ("radius", "learned", {}, matrices),
    ("radius", "fixed", {}, matrices),
    ("radius_brake", 0.5, {"lr_rho": 1e-2, "radius": "learned"}, pushed_outwards),
    ("radius_brake", 0.5, {"radius": "adaptive"}, pushed_outwards),
    ("radius_pull", 0.0, {"radius": "adaptive"}, too_short),
    ("radius_pull", 2.0, {"radius": "adaptive", "scale": "kernel", "snr": True}, too_short),
    ("radius_pull", 0.0, {"splits": "w=8+32"}, too_short),  # of the block, not of the whole
    ("radius_pull", 1e3, {}, too_short),  # at once
    ("radius_brake", 0.5, {"radius_pull": 2.0}, too_short),  # of the pull, too
    ("lr_rho", 0.0, {"radius_pull": 2.0}, too_short),  # without it there is no pull
    ("scale", "kernel", {}, matrices),
    ("scale", "kernel", {"splits": "w=8+32"}, matrices),  # of the block, not of the whole
    ("direction", "retraction", {"lr": 0.5}, big_rotation),
    ("direction", "fixed", {}, matrices),
    ("conditioner", "none", {}, matrices),
    ("coefficients", "you", {"reproject": "final"}, matrices),
    ("coefficients", "polar_express", {"reproject": "final"}, matrices),
    ("coefficients", "you", {}, matrices),
    ("coefficients", "polar_express", {}, matrices),
    ("coefficients", "four", {}, matrices),
    ("coefficients", "four", {"reproject": "final"}, matrices),
    # Of the guard, for every set: without it only the last projection is left.
    ("reproject", "final", {"coefficients": "you"}, disturbed),
    ("reproject", "final", {"coefficients": "polar_express"}, disturbed),
    ("reproject", "final", {"coefficients": "four"}, disturbed),
    ("snr", True, {}, matrices),
    ("snr_min", 0.97, {"snr": True}, lambda: matrices(common=0.1)),
    ("splits", "w=2", {}, matrices),
    ("splits", "*=8+32", {}, matrices),
    ("normalize", "rows", {}, matrices),
    ("row_beta", 0.2, {"normalize": "rows"}, matrices),
    ("radius_scope", "rows", {"reproject": "final"}, matrices),
    *NEWTON_SCHULZ,
    *REST_ADAMW,
    *CAUTIOUS_REST,
]
MUON = [
    ("lr", 5e-2, {}, matrices),
    ("weight_decay", 0.3, {}, matrices),
    ("momentum", 0.5, {}, matrices),
    ("nesterov", False, {}, matrices),
    ("eps", 1.0, {}, lambda: matrices(1)),  # above the start's norm: the clamp acts
    ("scale", "rms", {}, matrices),
    ("constraint", "normproj", {}, matrices),
    ("constraint", "hyperball", {}, matrices),
    ("coefficients", "you", {}, matrices),
    ("coefficients", "polar_express", {}, matrices),
    ("coefficients", "four", {}, matrices),
    ("eps", 1.0, {"coefficients": "four"}, lambda: matrices(1)),
    ("splits", "w=2", {}, matrices),
    ("normalize", "rows", {}, matrices),
    ("row_beta", 0.2, {"normalize": "rows"}, matrices),
    ("cautious_decay", True, {"weight_decay": 0.3}, matrices),
    ("cautious_decay", True, {"weight_decay": 0.3, "normalize": "rows"}, matrices),
    ("cautious_decay", True, {"weight_decay": 0.3, "splits": "w=8+32"}, matrices),
    *NEWTON_SCHULZ,
    *REST_ADAMW,
    *CAUTIOUS_REST,
]


def soap_case():
    return with_soap_state(problem((40, 24), STEPS, seed=3))


CASES = {
    "rode": RODE,
    "rode-snr": [
        ("lr", 1e-2, {}, matrices),
        ("lr_rho", 5e-2, {}, matrices),
        ("snr", False, {}, matrices),
        ("snr", False, {}, vectors),  # other default rates
        ("lr_rest", 1e-2, {}, vectors),
    ],
    "rode-fixed": [
        ("lr", 5e-3, {}, matrices),
        ("radius", "learned", {"lr_rho": 1e-2}, matrices),
        ("momentum", 0.5, {}, matrices),
        ("lr_rest", 1e-2, {}, vectors),
    ],
    "rode-paper": [
        ("lr", 5e-3, {}, matrices),
        ("scale", "angle", {}, matrices),
        ("snr", True, {}, vectors),  # other default rates
        ("lr_rho", 5e-2, {}, matrices),
        ("nesterov", True, {}, matrices),
        ("radius", "adaptive", {}, matrices),
        ("reproject", "guarded", {}, disturbed),
        ("on_zero", "rest", {}, from_zero),
        ("lr_rest", 1e-2, {}, vectors),
    ],
    "muon": MUON,
    "muon-rms": [
        ("lr", 2e-2, {}, matrices),
        ("scale", "original", {}, matrices),
        ("scale", "original", {}, vectors),
        ("weight_decay", 0.3, {}, matrices),
        ("lr_rest", 1e-2, {}, vectors),
    ],
    "muon-normproj": [
        ("lr", 2e-2, {}, matrices),
        ("constraint", "none", {}, matrices),
        ("momentum", 0.5, {}, matrices),
        ("lr_rest", 1e-2, {}, vectors),
    ],
    "muown": [
        ("lr", 1e-2, {}, matrices),
        ("lr_rho", 5e-2, {}, matrices),
        ("weight_decay", 0.5, {}, matrices),
        ("momentum", 0.5, {}, matrices),
        ("nesterov", False, {}, matrices),
        ("betas_radius", (0.5, 0.95), {}, matrices),
        ("betas_radius", (0.9, 0.5), {}, matrices),
        ("eps_radius", 1.0, {}, matrices),
        ("eps", 1.0, {}, lambda: matrices(1)),
        ("coefficients", "you", {}, matrices),
        ("coefficients", "polar_express", {}, matrices),
        ("coefficients", "four", {}, matrices),
        ("splits", "w=2", {}, matrices),
        *NEWTON_SCHULZ,
        *REST_ADAMW,
    ],
    "soap": [
        ("lr", 1e-2, {}, soap_case),
        ("weight_decay", 0.5, {}, soap_case),
        ("betas", (0.6, 0.95), {}, soap_case),
        ("betas", (0.95, 0.7), {}, soap_case),
        ("eps", 1e-2, {}, soap_case),
        ("precondition_frequency", 2, {}, soap_case),
        ("max_precond_dim", 23, {}, lambda: problem((24, 24), STEPS, seed=3, spectrum="spaced")),
        *REST_ADAMW,
    ],
    "mars-m": [
        ("lr", 1e-2, {}, matrices),
        ("weight_decay", 0.5, {}, matrices),
        ("momentum", 0.8, {}, matrices),
        ("gamma", 0.2, {}, matrices),
        ("normalize", "rows", {}, matrices),
        ("row_beta", 0.2, {"normalize": "rows"}, matrices),
        ("eps", 0.1, {}, matrices),
        ("coefficients", "you", {}, matrices),
        ("coefficients", "polar_express", {}, matrices),
        ("coefficients", "four", {}, matrices),
        ("cautious_decay", True, {"weight_decay": 0.5}, matrices),
        *NEWTON_SCHULZ,
        *REST_ADAMW,
        *CAUTIOUS_REST,
    ],
    "ademamix": [
        ("lr", 1e-3, {}, matrices),
        ("weight_decay", 0.5, {}, matrices),
        ("betas", (0.5, 0.999, 0.9999), {}, matrices),
        ("betas", (0.9, 0.9, 0.9999), {}, matrices),
        ("betas", (0.9, 0.999, 0.99), {}, matrices),
        ("alpha", 60.0, {}, matrices),
        ("eps", 1e-2, {}, matrices),
        ("warmup_steps", 40, {"betas": (0.9, 0.999, 0.99)}, matrices),
        ("warmup_steps", 4, {"betas": (0.9, 0.999, 0.99)}, matrices),  # ends within the run
        *REST_SAME_RULE,
    ],
    "adamw": [
        ("lr", 1e-3, {}, matrices),
        ("weight_decay", 0.5, {}, matrices),
        ("betas", (0.5, 0.95), {}, matrices),
        ("betas", (0.9, 0.6), {}, matrices),
        ("eps", 1e-2, {}, matrices),
        ("maximize", True, {}, matrices),
        ("cautious_decay", True, {"weight_decay": 0.5}, matrices),
        ("cautious_decay", True, {"weight_decay": 0.5, "maximize": True}, matrices),
        *REST_SAME_RULE,
        *CAUTIOUS_REST,
    ],
    "adafactor": [
        ("lr", 5e-3, {}, matrices),
        ("weight_decay", 0.5, {}, matrices),
        ("eps", 1e-3, {}, matrices),
        ("eps", 1e-3, {}, vectors),
        ("clip_threshold", 0.5, {}, matrices),
        ("decay_rate", -0.3, {}, matrices),
        *REST_SAME_RULE,
    ],
    "lion": [
        ("lr", 1e-3, {}, matrices),
        ("weight_decay", 30.0, {}, matrices),
        ("betas", (0.2, 0.99), {}, matrices),
        ("betas", (0.9, 0.5), {}, matrices),
        ("cautious_decay", True, {"weight_decay": 30.0}, matrices),
        *REST_SAME_RULE,
        ("cautious_decay", True, {"weight_decay_rest": 30.0}, vectors),
    ],
    "sgd": [
        ("lr", 0.3, {}, matrices),
        ("weight_decay", 0.1, {}, matrices),
        ("momentum", 0.5, {}, matrices),
        ("momentum", 0.0, {}, matrices),
        ("nesterov", True, {}, matrices),
        ("maximize", True, {"weight_decay": 0.1}, matrices),
        *REST_SAME_RULE,
    ],
}
FLAT = [
    pytest.param(optimizer, *case, id=f"{optimizer}-{case[0]}={case[1]}-{i}")
    for optimizer, cases in CASES.items()
    for i, case in enumerate(cases)
]


def moved_by(optimizer, key, value, base, make):
    """(trajectory with the change, distance to the one without, tolerance)."""
    p = make()
    before = follow(optimizer, p, base)
    changed = follow(optimizer, p, {**base, key: value})
    return p, changed, distance(before.weight, changed.weight), changed.bound()


@pytest.mark.parametrize("optimizer,key,value,base,make", FLAT)
def test_the_option_matters(optimizer, key, value, base, make):
    _, _, moved, bound = moved_by(optimizer, key, value, base, make)
    assert moved > 10 * bound, f"moves {moved:.2e}, tolerance {bound:.2e}"


@pytest.mark.parametrize("optimizer,key,value,base,make", FLAT)
def test_the_option_is_followed(rode, optimizer, key, value, base, make):
    p, changed, _, _ = moved_by(optimizer, key, value, base, make)
    output = rode.step_problem(optimizer, p, options={**base, key: value})
    assert_weight(output["param.w"], changed)


def test_every_option_has_a_case():
    covered_by_family = {
        "rode-snr": "rode",
        "rode-fixed": "rode",
        "rode-paper": "rode",
        "muon-rms": "muon",
        "muon-normproj": "muon",
    }
    for optimizer, options in oracles.DEFAULTS.items():
        keys = {case[0] for case in CASES[optimizer]}
        keys |= {case[0] for case in CASES.get(covered_by_family.get(optimizer), [])}
        assert keys == set(options), f"{optimizer}: {keys ^ set(options)}"
