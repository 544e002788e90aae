# SPDX-License-Identifier: Apache-2.0
"""Parameter groups: adding them, and checking all that will be stepped before it is."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.nn.parameter import is_lazy

from rode import _engine
from rode._checks import (
    check_memory,
    check_names,
    check_parameter,
    names_of,
    one_device,
    repeated,
)
from rode._options import (
    REST_KEYS,
    Method,
    acting,
    check_choices,
    coupling,
    decay_of_rest,
    engine_options,
    group_defaults,
    plain,
    rate,
    refuse_unknown,
    settings,
)
from rode._shards import is_dtensor, refuse_forms
from rode._stored_state import TENSOR_TYPES, TYPE_NAMES, Plan, as_planned, began_at_zero
from rode._torch_state import check_state, from_torch, is_torchs
from rode.routing import Reasons

_TORCH_NAMES_PARAMETERS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)

NO_OPTIONS = ("params", "param_names")
Shapes: TypeAlias = Callable[[torch.Tensor], list[int]]
_OWN_KEYS = frozenset(("rule", "route", "layout", "steps_done", "couple_lr_rho"))


def _is_short(p: torch.Tensor, limit: float) -> bool:
    """Whether the norm is at most this, where it can be known now."""
    if is_lazy(p) or p.is_meta or is_dtensor(p):
        return False
    return bool(torch.linalg.vector_norm(p.detach().float()) <= limit)


class Groups(torch.optim.Optimizer):
    """An optimizer's groups and what is known of them without an engine."""

    # Whether what is not a matrix is left to AdamW; False: one rule for everything.
    _delegates: bool
    # Of the classes that torch.optim has too, its names for the engine's state keys: checkpoints
    # are then the same.
    _torch_names: dict[str, str] | None = None
    _name: str  # the engine's
    _keys: list[str]  # of its options
    _reasons: Reasons
    _constructed = True  # False while the groups of the constructor are added

    def _drop(self) -> None:
        """Forgets the engine, which has other groups."""
        raise NotImplementedError

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; its options default to the optimizer's, those of a group with
        rule="rest" to the rest's."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        group = dict(param_group)
        check_choices(group)
        rule = group.get("rule", "auto")
        reasons = group.pop("reasons", {})
        self._name_parameters(group)
        decay_of_rest(group, self._keys)
        options = group_defaults(self._name, self.defaults, self._keys, self._delegates, rule)
        # Options that other groups have are ignored here, as where one dict serves several groups.
        known = {*options, *self.defaults, *_OWN_KEYS, *NO_OPTIONS, "reference_lr"}
        refuse_unknown(self._name, group, known)
        super().add_param_group({**options, **group})
        added = self.param_groups[-1]
        try:
            for key in self._keys:
                if key not in options:
                    del added[key]
            added.setdefault("reference_lr", rate(added))
            self._check_added(added)
            if self._constructed:  # else once for all, when the last one is there
                self._check_together()
        except BaseException:
            self.param_groups.pop()
            raise
        if isinstance(reasons, Reasons):
            self._reasons = reasons.after(self._reasons)
        else:
            self._reasons.update(reasons)
        self._drop()

    def _check_together(self) -> None:
        check_names(self.param_groups)
        names = names_of(self.param_groups)
        everything = [p for each in self.param_groups for p in each["params"]]
        one_device(names, everything)
        check_memory(names, everything)

    def _check_added(self, group: dict[str, Any]) -> None:
        params = group["params"]
        first = sum(len(other["params"]) for other in self.param_groups) - len(params)
        own = group.get("param_names") or [f"param.{first + i}" for i in range(len(params))]
        check_names([{**group, "param_names": own}])
        for name, p in zip(own, params, strict=True):
            if not (p.is_leaf or p.retains_grad):  # torch lets it pass where differentiable=True
                raise ValueError(f"can't optimize a non-leaf Tensor: '{name}'")
        if not any(is_lazy(p) for p in params):  # of those the first step knows the shapes
            refuse_forms([group], own)
            self._plan(group, own)
        twice = repeated(own, params)
        if twice:  # torch has warned of it, without a name
            warnings.warn(f"[parameters] {twice}", stacklevel=2)

    def _plan(
        self,
        group: dict[str, Any],
        names: list[str],
        states: Sequence[Mapping[str, Any]] | None = None,
        shapes: Shapes | None = None,
    ) -> dict[str, Plan]:
        """The state of a group's parameters, by name and key, where `states` is what they have;
        raises where its options or its parameters are not to be stepped. `shapes`: of what this
        process steps of each."""
        check_choices(group)
        layout = group["layout"]
        for name, p in zip(names, group["params"], strict=True):
            check_parameter(name, p)
        known = [{}] * len(names) if states is None else states
        members = [
            (None, name, 0, shapes(p) if shapes else list(p.shape), TYPE_NAMES[p.dtype], layout,
             began_at_zero(state))
            for name, p, state in zip(names, group["params"], known, strict=True)
        ]  # fmt: skip
        plan: dict[str, Plan] = {name: {} for name in names}
        for name, key, shape, dtype in _engine.planned_state((*self._method(group), members)):
            plan[name][key] = (shape, TENSOR_TYPES[dtype])
        return plan

    def _name_parameters(self, group: dict[str, Any]) -> None:
        """Names where torch has none: state and messages are keyed by them."""
        params = group["params"]
        if isinstance(params, set):  # torch's to refuse
            return
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        group["params"] = params
        if not params:
            return
        named = [isinstance(p, tuple) for p in params]
        if all(named) and not _TORCH_NAMES_PARAMETERS:
            group["param_names"] = [name for name, _ in params]
            group["params"] = [p for _, p in params]
        elif not any(named) and self.param_groups and "param_names" in self.param_groups[0]:
            first = sum(len(other["params"]) for other in self.param_groups)
            group.setdefault("param_names", [f"param.{first + i}" for i in range(len(params))])

    def _effective(self, group: dict[str, Any]) -> dict[str, Any]:
        options = engine_options(group, self._keys, self._delegates, rate(group))
        if self._delegates and group["rule"] == "matrix":
            # Of matrices that begin at zero.
            rest = {key: self.defaults[key] for key in self._keys if key in REST_KEYS.values()}
            options = {**plain(rest), **options}
        return options

    def _route(self, group: dict[str, Any]) -> str:
        # A rest that the same rule steps has its rates under the plain names.
        rule = group["rule"] if self._delegates else "matrix"
        route = _engine.group_route(self._name, rule, group["route"])
        if route != "auto":
            return route
        # By the whole group: the engine may have a part of it.
        members = [
            (list(p.shape), [(name, 0)])
            for name, p in zip(names_of([group]), group["params"], strict=True)
            if not is_lazy(p)
        ]
        return _engine.choose_route([("by_name", "", 0)], members, route)[0]

    def _coupling(self, group: dict[str, Any]) -> tuple[float | None, bool]:
        return coupling(group, self._delegates and group["rule"] == "rest")

    def _begins_at_zero(self, group: dict[str, Any], p: torch.Tensor) -> bool:
        """Whether the engine leaves this matrix to the rest, or would if it were built now."""
        limit = self._zero_norm(group)
        if limit is None:
            return False
        known = began_at_zero(self.state.get(p, {}))
        return _is_short(p, limit) if known is None else known

    def _starts_at_zero(self, group: dict[str, Any], p: torch.Tensor) -> bool:
        """The same where it is a matrix that starts along its momentum; of blocks and experts, any,
        which is known once there is state."""
        options = self._effective(group)
        if options.get("on_zero") != "start":
            return False
        known = self.state.get(p, {}).get("start_norm")
        return _is_short(p, float(options["eps"])) if known is None else bool((known > 0).any())

    def _zero_norm(self, group: dict[str, Any]) -> float | None:
        """A matrix whose norm is at most this at the start is left to the rest; None: it is not."""
        return _engine.zero_norm(self._name, settings(self._effective(group)))

    def _rates(self, group: dict[str, Any]) -> dict[str, tuple[str, str]]:
        """Rate and decay of a group's matrices and of its rest, as they act now."""
        options = self._effective(group)
        now = acting(self._name, options)
        start = self._coupling(group)[0]
        out = {}
        for rule, suffix in (
            ("matrix", ""),
            ("rest", "_rest" if self._delegates else ""),
        ):
            lr = float(now[f"lr{suffix}"])
            if suffix and options.get("lr_rest") is not None and start:
                lr *= rate(group) / start
            decay = now.get(f"weight_decay{suffix}")
            out[rule] = f"{lr:.4g}", "-" if decay is None else f"{float(decay):.4g}"
        return out

    def _method(self, group: dict[str, Any]) -> Method:
        options = settings(self._effective(group))
        return self._name, options, self._route(group), self._coupling(group)

    def _take_starts(self, given: Mapping[str, Any]) -> dict[torch.Tensor, dict[str, Any]]:
        """Gives matrices that began otherwise in a file, by its names, than here the state that
        they have there, of zeros. Returns what they had."""
        names = iter(names_of(self.param_groups))
        fresh: dict[torch.Tensor, dict[str, Any]] = {}
        for group in self.param_groups:
            own = [next(names) for _ in group["params"]]
            states = [self.state.get(p, {}) for p in group["params"]]
            saved = [
                {key: None for key in ("exp_avg", "momentum") if f"state.{name}.{key}" in given}
                for name in own
            ]
            differ = [
                bool(s and here) and began_at_zero(s) != began_at_zero(here)
                for s, here in zip(saved, states, strict=True)
            ]
            if not any(differ) or self._zero_norm(group) is None:
                continue
            plan = self._plan(group, own, saved)
            for name, p, differs in zip(own, group["params"], differ, strict=True):
                if differs:
                    fresh[p] = {
                        key: torch.zeros(shape, dtype=dtype, device=p.device)
                        for key, (shape, dtype) in plan[name].items()
                    }
        before = {p: self.state[p] for p in fresh}
        self.state.update(fresh)
        return before

    # ---- Loading ----------------------------------------------------------------------------

    def _fill(self, group: dict[str, Any], own: dict[str, Any]) -> None:
        """What a state dict of another optimizer or release may lack stays as it is."""
        for key in self.defaults.keys() - self._keys:
            if key in _OWN_KEYS or key in own:
                kept = own if key != "steps_done" else {}
                group.setdefault(key, kept.get(key, self.defaults[key]))
        own_defaults = (self._name, self.defaults, self._keys, self._delegates)
        options = group_defaults(*own_defaults, group["rule"])
        if own.get("rule") == group["rule"]:
            options.update((key, own[key]) for key in options.keys() & own.keys())
        for key, value in options.items():
            group.setdefault(key, value)
        group.setdefault("reference_lr", rate({"lr": group.get("initial_lr", group["lr"])}))

    def _loadable(self, given: dict[str, Any], shapes: Shapes | None = None) -> dict[str, Any]:
        """A state dict as it will be taken; raises for what could not be stepped."""
        saved = given["param_groups"]
        if [len(g["params"]) for g in saved] != [len(g["params"]) for g in self.param_groups]:
            return given  # torch's to refuse
        groups = []
        for group, own in zip(saved, self.param_groups, strict=True):
            kept = {key: own[key] for key in NO_OPTIONS if key in own}
            groups.append({**kept, **group, "params": own["params"]})
            self._fill(groups[-1], own)
        check_names(groups)
        names = iter(names_of(groups))
        state = dict(given["state"])
        for group, numbers in zip(groups, (g["params"] for g in saved), strict=True):
            own_names = [next(names) for _ in numbers]
            states = [state.get(number, {}) for number in numbers]
            plan = self._plan(group, own_names, states, shapes)
            for number, name in zip(numbers, own_names, strict=True):
                entries = state.get(number, {})
                if self._torch_names is not None:
                    entries = from_torch(entries, name, plan[name], self._torch_names)
                entries = as_planned(entries, f"{name}.", plan[name])
                check_state(entries, name, plan[name])
                if number in state:
                    state[number] = entries
        return {**given, "state": state}

    def _adopt_state(self, shapes: Shapes | None) -> None:
        """State that a program has put there itself, out of a state dict (ZeroRedundancyOptimizer),
        and state of a group whose `state_dtype` has changed."""
        names = iter(names_of(self.param_groups))
        for group in self.param_groups:
            own = [next(names) for _ in group["params"]]
            states = [self.state.get(p, {}) for p in group["params"]]
            if not any(states):
                continue
            plan = self._plan(group, own, states, shapes)
            for name, entries in zip(own, states, strict=True):
                converted = as_planned(entries, f"{name}.", plan[name])
                if self._torch_names is not None and is_torchs(entries, self._torch_names):
                    converted = from_torch(entries, name, plan[name], self._torch_names)
                if any(converted.get(key) is not value for key, value in entries.items()):
                    entries.clear()
                    entries.update(converted)
