# SPDX-License-Identifier: Apache-2.0
"""Every optimizer's options and defaults, as data: what the engine must agree with."""

_ADAMW_REST = {"weight_decay_rest": 9e-4, "betas_rest": (0.9, 0.95), "eps_rest": 1e-8}
_NEWTON_SCHULZ = {
    "ns_steps": 5,
    "coefficients": "jordan",
    "normalize": "none",
    "row_beta": 0.95,
}

_CAUTIOUS = {"cautious_decay": False}

_RODE = {
    "lr": 5e-2,
    "lr_rho": 3e-2,
    "lr_rest": 2.915e-3,
    "momentum": 0.9,
    "floor": 1e-6,
    "eps": 1e-12,
    "eps_ns": 1e-12,
    "on_zero": "rest",
    "reproject": "guarded",
    "nesterov": True,
    "radius": "adaptive",
    "radius_brake": 1.0,
    "radius_pull": 0.6,
    "radius_scope": "matrix",
    "scale": "angle",
    "direction": "geodesic",
    "conditioner": "newton_schulz",
    "snr": False,
    "snr_min": 0.01,
    "splits": "",
    **_NEWTON_SCHULZ,
    **_ADAMW_REST,
    **_CAUTIOUS,
}
_PUBLISHED = {
    **_RODE,
    "lr": 1.206e-3,
    "lr_rho": 2.438e-3,
    "scale": "kernel",
    "radius": "learned",
    "radius_pull": 0.0,
    "nesterov": False,
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
    **_CAUTIOUS,
}
_MUON_RMS = {**_MUON, "lr": 5.160e-3, "lr_rest": 2.913e-3, "scale": "rms"}

DEFAULTS = {
    "rode": _RODE,
    "rode-snr": {
        **_PUBLISHED,
        "lr": 4.544e-3,
        "lr_rho": 3.698e-5,
        "lr_rest": 2.974e-3,
        "snr": True,
    },
    "rode-fixed": {**_PUBLISHED, "lr_rho": 0.0, "radius": "fixed"},
    "rode-paper": {**_PUBLISHED, "reproject": "every", "on_zero": "hold"},
    "muon": _MUON,
    "muon-rms": _MUON_RMS,
    "muon-normproj": {**_MUON_RMS, "constraint": "normproj"},
    "muown": {
        "lr": 1e-3,
        "lr_rho": 1e-3,
        "lr_rest": 1e-3,
        "weight_decay": 0.0,
        "momentum": 0.95,
        "nesterov": True,
        "betas_radius": (0.9, 0.95),
        "eps_radius": 1e-8,
        "eps": 1e-7,
        "ns_steps": 5,
        "coefficients": "jordan",
        "splits": "",
        **_ADAMW_REST,
    },
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
        **_CAUTIOUS,
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
        **_CAUTIOUS,
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
        **_CAUTIOUS,
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

# By scale and snr.
_RODE_LR = {
    ("angle", False): 5e-2,
    ("angle", True): 0.2,
    ("kernel", False): 1.206e-3,
    ("kernel", True): 4.544e-3,
}


def _rates_of(optimizer, options):
    """The default rates that belong to these options, whatever the optimizer was called."""
    if "snr" in options:
        snr = options["snr"]
        # Every radius has a rate of its own; that of the adaptive one is relative.
        radial = {
            "adaptive": 3e-2,
            "learned": 3.698e-5 if snr else 2.438e-3,
            "fixed": 0.0,
        }
        return {
            "lr": _RODE_LR[options["scale"], snr],
            "lr_rho": radial[options["radius"]],
            "lr_rest": 2.974e-3 if snr else 2.915e-3,
        }
    if "scale" in options:
        optimizer = "muon-rms" if options["scale"] == "rms" else "muon"
    own = DEFAULTS[optimizer]
    return {key: own[key] for key in ("lr", "lr_rho", "lr_rest") if key in own}


def options_of(optimizer, changed=None):
    """The optimizer's full options with some of them changed."""
    changed = dict(changed or {})
    options = dict(DEFAULTS[optimizer])
    unknown = set(changed) - set(options)
    if unknown:
        raise KeyError(f"{optimizer} has no option {sorted(unknown)}")
    if changed.get("coefficients") == "four":
        options["ns_steps"] = 4
    options.update(changed)
    if optimizer not in SAME_RULE:
        own = _rates_of(optimizer, options)
        options.update({key: own[key] for key in own if key not in changed})
        if "lr_rest" not in changed:
            options["lr_rest"] = own["lr_rest"] * options["lr"] / own["lr"]
    for key in ("lr", "weight_decay"):
        if options.get(f"{key}_rest", 0) is None:
            options[f"{key}_rest"] = options[key]
    return options
