# SPDX-License-Identifier: Apache-2.0
"""Options between a torch parameter group and the engine's text."""

import difflib
import functools
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch

from rode import _engine
from rode.routing import ROUTES

# Optimizer, settings, route, coupling of rates: what the engine gets of a group.
Method: TypeAlias = tuple[str, list[tuple[str, str]], str, tuple[float | None, bool]]
# What AdamW takes of a group of the rest, and the engine's names for it.
REST_KEYS = {
    "lr": "lr_rest",
    "weight_decay": "weight_decay_rest",
    "betas": "betas_rest",
    "eps": "eps_rest",
}
STORAGE_KEYS = ("rounding", "state_dtype", "state_rounding", "seed")
# None in a group where they were not given: they follow another option, as it is then.
FOLLOWING = ("ns_steps", "lr_rest", "weight_decay_rest")
# Of torch.optim, and not implemented, with the way out.
_REFUSED = {
    "amsgrad": "use amsgrad=False, or torch.optim.AdamW",
    "dampening": "use dampening=0, or torch.optim.SGD",
}
_CHOICES = {
    "rule": ("auto", "matrix", "rest"),
    "layout": ("out_in", "in_out", "experts_out_in", "experts_in_out"),
    "route": ROUTES,
}
# What torch's schedulers write into groups; some look like options.
_SCHEDULER_KEYS = ("initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum", "max_momentum")
# Options that are the rest's: no part of a group that has one rule for all.
_REST_OPTIONS = set(REST_KEYS.values())


def to_text(value: Any) -> str:
    """The engine's spelling of a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, (tuple, list)):
        return ",".join(to_text(item) for item in value)
    if isinstance(value, int):
        return str(value)
    return repr(float(value))  # floats, and one-element tensors


def from_text(text: str, live: bool) -> Any:
    """The value that a default's text stands for; live options are numbers or lists of them."""
    if text in ("true", "false"):
        return text == "true"
    if live:
        numbers = tuple(float(part) for part in text.split(","))
        return numbers if len(numbers) > 1 else numbers[0]
    try:
        return int(text)
    except ValueError:
        return text


def settings(options: dict[str, Any]) -> list[tuple[str, str]]:
    """What the engine parses and checks."""
    out = []
    for key, value in options.items():
        if value is None and key in FOLLOWING:
            continue
        try:
            out.append((key, to_text(value)))
        except (TypeError, ValueError, RuntimeError):
            raise _engine.OptionError(
                f"[groups] {key} = {value!r}; expected a number, a list of numbers, a word, True "
                "or False"
            ) from None
    return out


def complete(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Every option of the optimizer: those given (None: not), and the engine's defaults, except of
    what follows another option."""
    chosen = settings({key: value for key, value in given.items() if value is not None})
    options = {}
    for key, text, _, live, is_set in _engine.options(name, chosen):
        value = given.get(key)
        default = None if key in FOLLOWING and not is_set else from_text(text, live)
        options[key] = default if value is None else value
    return options


def preset(family: str, given: dict[str, Any]) -> str:
    """The name that goes with the options given: its rates are the defaults then."""
    words = {
        k: v for k, v in given.items() if isinstance(v, (str, bool)) and k in every_key(family)
    }
    return _engine.preset(family, settings(words))


def named(family: str, word: Any) -> str:
    """The name of a requested preset: "paper" of "rode" is "rode-paper"."""
    name = f"{family}-{word}"
    names = [own for own, _, of in _engine.optimizers() if of == family and own != family]
    if name not in names:
        known = [own.removeprefix(f"{family}-") for own in names]
        raise _engine.OptionError(
            f"[{family}] preset = {word!r}; expected {' or '.join(known)}, or none"
        )
    return name


def gradient_policy(name: str, value: Any) -> str:
    """`on_non_finite` of an optimizer; groups do not have it: one gate decides for all of them."""
    if value not in ("refuse", "skip"):
        raise _engine.OptionError(
            f"[{name}] option 'on_non_finite': expected refuse or skip, got {value!r}"
        )
    return str(value)


def every_key(name: str) -> set[str]:
    return {row[0] for row in _engine.options(name, [])}


def live_keys(name: str) -> set[str]:
    return {key for key, _, _, live, _ in _engine.options(name, []) if live}


@functools.cache
def _every_option() -> frozenset[str]:
    return frozenset().union(*(every_key(name) for name, _, _ in _engine.optimizers()))


def refuse_unknown(name: str, given: Iterable[str], known: set[str]) -> None:
    """Raises for a key of a group that is meant as an option but is none of this optimizer's.

    Foreign keys, such as a scheduler's or a program's own tags, are no options and may stay.
    """
    for key in given:
        if key in known or key in _SCHEDULER_KEYS:
            continue
        close = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.8)
        if key in _every_option():
            rest = REST_KEYS.get(key)
            hint = f"; for what is not a matrix it is '{rest}'" if rest in known else ""
            raise _engine.OptionError(f"[groups] '{key}' is not an option of {name} here{hint}")
        if close:
            raise _engine.OptionError(
                f"[groups] unknown option '{key}'; did you mean '{close[0]}'?"
            )


def decay_of_rest(group: dict[str, Any], keys: list[str]) -> None:
    """A trainer writes `weight_decay` into its groups. Where the matrices have none, it is meant
    for the rest."""
    ambiguous = "weight_decay" in keys or "weight_decay_rest" in group
    if "weight_decay" in group and group.get("rule", "auto") == "auto" and not ambiguous:
        group["weight_decay_rest"] = group.pop("weight_decay")


def refuse_unsupported(group: dict[str, Any]) -> None:
    """Raises for what torch.optim's AdamW and SGD do and the engine does not."""
    for key, remedy in _REFUSED.items():
        value = group.get(key)
        if value:
            raise _engine.OptionError(f"[groups] '{key}' = {value!r} is not implemented; {remedy}")
    # A key of torch's Adam, whose checkpoints look like AdamW's.
    if group.get("decoupled_weight_decay") is False and float(group.get("weight_decay", 0)) != 0:
        raise _engine.OptionError(
            "[groups] 'decoupled_weight_decay' = False with weight_decay = "
            f"{group['weight_decay']}: Adam adds the decay to the gradient, AdamW does not; set "
            "weight_decay to 0 or decoupled_weight_decay to True in the group"
        )


def rate(group: dict[str, Any]) -> float:
    """The group's lr as a number."""
    lr = group["lr"]
    try:
        if not isinstance(lr, str):
            return float(lr)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise _engine.OptionError(f"[groups] lr = {lr!r}; expected a number >= 0")


def check_choices(group: dict[str, Any]) -> None:
    """Raises for words of a group that the engine is not asked about."""
    for key, allowed in _CHOICES.items():
        value = group.get(key, allowed[0])
        if not (isinstance(value, str) and value in allowed):
            words = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
            raise _engine.OptionError(f"[groups] {key} = {value!r}; expected {words}")


def acting(name: str, options: dict[str, Any]) -> dict[str, str]:
    """The engine's text of every option, also of those that follow others."""
    return {key: text for key, text, *_ in _engine.options(name, settings(options))}


def group_defaults(
    name: str, defaults: dict[str, Any], keys: list[str], delegates: bool, rule: str
) -> dict[str, Any]:
    """The options that a group with this rule has, with the optimizer's values."""
    out = {key: defaults[key] for key in keys}
    if rule == "rest":
        rest = {key: out[other] for key, other in REST_KEYS.items() if other in out}
        if delegates and rest["lr"] is None:
            rest["lr"] = float(acting(name, out)["lr_rest"])
        # One rule has one rate: the same object, which a program may change in place.
        rest = {key: out[key] if value is None else value for key, value in rest.items()}
        out = {key: out[key] for key in STORAGE_KEYS if key in out} if delegates else out
        out.update(rest)
    if rule != "auto" or not delegates:
        out = {key: value for key, value in out.items() if key not in _REST_OPTIONS}
    return out


def _plain(key: str, value: Any) -> Any:
    """The value as it is now: numbers for tensors, tuples for lists."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise _engine.OptionError(
                f"[groups] {key} is a tensor of shape {tuple(value.shape)}; expected one element"
            )
        return value.item()
    if isinstance(value, (list, tuple)):
        return tuple(_plain(key, item) for item in value)
    return value


def plain(options: dict[str, Any]) -> dict[str, Any]:
    """With what may change in place as it is now."""
    return {
        key: _plain(key, value) if isinstance(value, (list, tuple, torch.Tensor)) else value
        for key, value in options.items()
    }


def coupling(group: dict[str, Any], rest: bool) -> tuple[float | None, bool]:
    """How the engine lets other rates follow the group's lr: from the lr that it was made with.

    That is the `initial_lr` of torch's schedulers, except with OneCycleLR and CyclicLR, which set
    both to rates of their own. `rest`: AdamW steps the group, and nothing follows.
    """
    start = None if rest else float(group["reference_lr"])
    return start, bool(group.get("couple_lr_rho", True))


def engine_options(
    group: dict[str, Any], keys: list[str], delegates: bool, lr: float
) -> dict[str, Any]:
    """What the engine gets of a group, by its own keys.

    `delegates`: the optimizer leaves the rest to AdamW, so a group may hold both.
    """
    refuse_unsupported(group)
    rest = delegates and group["rule"] == "rest"
    if rest:
        out = {engine: group[key] for key, engine in REST_KEYS.items()}
        out.update((key, group[key]) for key in STORAGE_KEYS if key in keys)
    else:
        both = delegates and group["rule"] == "auto"
        out = {key: group[key] for key in keys if both or key not in _REST_OPTIONS}
    out = plain(out)
    out["lr_rest" if rest else "lr"] = lr
    return out


def refuse_divided_starts(methods: list[Method], names: list[str]) -> None:
    """Raises where matrices start at the median of all, and those of `names` lie on several ranks:
    each would see a median of its own."""
    for name in names:
        if any(("on_zero", "start") in settings for _, settings, *_ in methods):
            raise _engine.Error(
                f"[parameters] the matrices of '{name}', a DTensor, are divided between "
                "processes, but option 'on_zero' = 'start' needs all of them: the length of a "
                "start is a median over all matrices; set on_zero='rest' or on_zero='hold'"
            )
