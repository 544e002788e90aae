# SPDX-License-Identifier: Apache-2.0
"""Every optimizer's options and defaults, as data: what the engine must agree with."""

_ADAMW_REST = {"weight_decay_rest": 9e-4, "betas_rest": (0.9, 0.95), "eps_rest": 1e-8}
_NEWTON_SCHULZ = {
    "ns_steps": 5,
    "coefficients": "jordan",
    "normalize": "none",
    "row_beta": 0.95,
}

_RODE = {
    "lr": 1.206e-3,
    "lr_rho": 2.438e-3,
    "lr_rest": 2.915e-3,
    "momentum": 0.9,
    "floor": 1e-6,
    "eps": 1e-12,
    "eps_ns": 1e-12,
    "on_zero": "rest",
    "reproject": "guarded",
    "nesterov": False,
    "radius": "learned",
    "radius_brake": 1.0,
    "scale": "kernel",
    "direction": "geodesic",
    "conditioner": "newton_schulz",
    "snr": False,
    "snr_min": 0.01,
    "splits": "",
    **_NEWTON_SCHULZ,
    **_ADAMW_REST,
}
_MUON = {
    "lr": 2.257e-2,
    "lr_rest": 2.897e-3,
    "weight_decay": 0.0,
    "momentum": 0.95,
    "nesterov": True,
    "eps": 1e-7,
    "scale": "original",
    "constraint": "none",
    "splits": "",
    **_NEWTON_SCHULZ,
    **_ADAMW_REST,
}
_MUON_RMS = {**_MUON, "lr": 5.160e-3, "lr_rest": 2.913e-3, "scale": "rms"}

DEFAULTS = {
    "rode": _RODE,
    "rode-snr": {**_RODE, "lr": 4.544e-3, "lr_rho": 3.698e-5, "lr_rest": 2.974e-3, "snr": True},
    "rode-fixed": {**_RODE, "lr_rho": 0.0, "radius": "fixed"},
    "muon": _MUON,
    "muon-rms": _MUON_RMS,
    "muon-normproj": {**_MUON_RMS, "constraint": "normproj"},
    "soap": {
        "lr": 2.900e-3,
        "lr_rest": 2.591e-3,
        "weight_decay": 1e-2,
        "betas": (0.95, 0.95),
        "eps": 1e-8,
        "precondition_frequency": 10,
        "max_precond_dim": 10000,
        **_ADAMW_REST,
    },
    "mars-m": {
        "lr": 4.097e-3,
        "lr_rest": 2.693e-3,
        "weight_decay": 1e-2,
        "momentum": 0.95,
        "gamma": 0.025,
        "eps": 1e-7,
        **_NEWTON_SCHULZ,
        **_ADAMW_REST,
    },
    # One rule for everything: the rest has the rate and the decay of the others unless they are set.
    "ademamix": {
        "lr": 2.237e-4,
        "lr_rest": None,
        "weight_decay": 1e-2,
        "weight_decay_rest": None,
        "betas": (0.9, 0.999, 0.9999),
        "alpha": 2.0,
        "eps": 1e-8,
        "warmup_steps": 0,
    },
    "adamw": {
        "lr": 1.544e-4,
        "lr_rest": None,
        "weight_decay": 1e-2,
        "weight_decay_rest": None,
        "betas": (0.9, 0.95),
        "eps": 1e-8,
        "maximize": False,
    },
    "adafactor": {
        "lr": 1e-3,
        "lr_rest": None,
        "weight_decay": 0.0,
        "weight_decay_rest": None,
        "eps": 1e-30,
        "clip_threshold": 1.0,
        "decay_rate": -0.8,
    },
    "lion": {
        "lr": 1e-4,
        "lr_rest": None,
        "weight_decay": 0.1,
        "weight_decay_rest": None,
        "betas": (0.9, 0.99),
    },
    "sgd": {
        "lr": 1e-1,
        "lr_rest": None,
        "weight_decay": 5e-4,
        "weight_decay_rest": None,
        "momentum": 0.9,
        "nesterov": False,
        "maximize": False,
    },
}

# One rule for everything: the rest differs only in its rate and decay.
SAME_RULE = {"ademamix", "adamw", "adafactor", "lion", "sgd"}

# The adaptive radius has a relative rate, with its own default.
ADAPTIVE_LR_RHO = 1e-2


def _rates_of(optimizer, options):
    """The name whose default rates belong to these options, whatever the optimizer was called."""
    if "snr" in options:
        return "rode-snr" if options["snr"] else "rode"
    if "scale" in options:
        return "muon-rms" if options["scale"] == "rms" else "muon"
    return optimizer


def options_of(optimizer, changed=None):
    """The optimizer's full options with some of them changed."""
    changed = dict(changed or {})
    options = dict(DEFAULTS[optimizer])
    unknown = set(changed) - set(options)
    if unknown:
        raise KeyError(f"{optimizer} has no option {sorted(unknown)}")
    if changed.get("radius") == "adaptive":
        options["lr_rho"] = ADAPTIVE_LR_RHO
    if changed.get("coefficients") == "four":
        options["ns_steps"] = 4
    options.update(changed)
    if optimizer not in SAME_RULE and "lr_rest" not in changed:
        own = DEFAULTS[_rates_of(optimizer, options)]
        options["lr_rest"] = own["lr_rest"] * options["lr"] / own["lr"]
    for key in ("lr", "weight_decay"):
        if options.get(f"{key}_rest", 0) is None:
            options[f"{key}_rest"] = options[key]
    return options
