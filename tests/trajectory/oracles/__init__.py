# SPDX-License-Identifier: Apache-2.0
"""Independent oracles of every optimizer, double precision, one parameter at a time.

`make` gives an object with `step(w, g) -> w'` and a `state` dict whose keys are those of
the engine's files. PyTorch itself stands for AdamW and SGD in double precision.
"""

import numpy as np

from .defaults import DEFAULTS, SAME_RULE, options_of
from .elementwise import Adafactor, AdamW, AdEMAMix, Lion, Sgd, torch_adamw, torch_sgd
from .int8 import Int8State
from .muon import MarsM, Muon
from .muown import Muown
from .rode import Rode
from .soap import Soap

# Of options that several optimizers have, those that change a trajectory in double precision.
STORAGE = ("state_dtype", "state_rounding", "seed")

_MATRIX_RULES = {
    "rode": Rode,
    "rode-snr": Rode,
    "rode-fixed": Rode,
    "rode-paper": Rode,
    "muon": Muon,
    "muon-rms": Muon,
    "muon-normproj": Muon,
    "muown": Muown,
    "soap": Soap,
    "mars-m": MarsM,
}


def make(optimizer, w, changed=None, *, name="w", matrix=None, in_out=False, dtype=np.float64):
    """The oracle of one parameter; `matrix` selects the rule (default: rank two or more)."""
    changed = dict(changed or {})
    storage = {key: changed.pop(key) for key in STORAGE if key in changed}
    if matrix is None:
        matrix = w.ndim >= 2
    int8 = storage.pop("state_dtype", "fp32") == "int8"
    rule = _full(optimizer, w, options_of(optimizer, changed), name, matrix, in_out, dtype, int8)
    return Int8State(rule, name, in_out, **storage) if int8 else rule


def _full(optimizer, w, options, name, matrix, in_out, dtype, int8):
    """With state in full precision."""
    # A matrix that begins at zero has no direction, and is the rest's.
    rest = options.get("on_zero") == "rest" or optimizer == "muown"
    if matrix and rest and np.linalg.norm(w) <= (0 if optimizer == "muown" else options["eps"]):
        matrix = False
    if matrix and optimizer in _MATRIX_RULES:
        return _MATRIX_RULES[optimizer](name, w, options, in_out=in_out, dtype=dtype)
    use_torch = dtype == np.float64 and not int8  # whose state is its own
    if optimizer not in SAME_RULE:
        rest = (
            options["lr_rest"],
            options["weight_decay_rest"],
            options["betas_rest"],
            options["eps_rest"],
        )
        cautious = options.get("cautious_decay", False)
        if use_torch and not cautious:
            return torch_adamw(w, *rest)
        return AdamW(w, *rest, cautious=cautious, dtype=dtype)
    lr = options["lr" if matrix else "lr_rest"]
    decay = options["weight_decay" if matrix else "weight_decay_rest"]
    if optimizer == "adamw":
        rule = (lr, decay, options["betas"], options["eps"], options["maximize"])
        if use_torch and not options["cautious_decay"]:
            return torch_adamw(w, *rule)
        return AdamW(w, *rule, options["cautious_decay"], dtype)
    if optimizer == "sgd":
        rule = (lr, decay, options["momentum"], options["nesterov"], options["maximize"])
        # PyTorch keeps no buffer without momentum; ours exists and stays at zero.
        if use_torch and options["momentum"] != 0:
            return torch_sgd(w, *rule)
        return Sgd(w, *rule, dtype=dtype)
    if optimizer == "ademamix":
        return AdEMAMix(
            w,
            lr,
            decay,
            options["betas"],
            options["alpha"],
            options["eps"],
            options["warmup_steps"],
            dtype,
        )
    if optimizer == "lion":
        return Lion(w, lr, decay, options["betas"], options["cautious_decay"], dtype)
    if optimizer == "adafactor":
        return Adafactor(
            w, lr, decay, options["eps"], options["clip_threshold"], options["decay_rate"], dtype
        )
    raise KeyError(optimizer)
