# SPDX-License-Identifier: Apache-2.0
"""torch.optim's contract over the engine: groups, state, steps, checkpoints."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import is_
from typing import Any, TypeAlias

import torch

from rode import _engine
from rode._binding import Binding, is_capturing, refuse_capture
from rode._exit import release_at_exit
from rode._groups import NO_OPTIONS, Groups
from rode._heads import HEADS_OF_PARTS, scale_heads
from rode._named_state import load_named_state
from rode._options import (
    complete,
    gradient_policy,
    named,
    preset,
    rate,
    settings,
)
from rode._routing_table import routing_table
from rode._share_state import (
    consolidated,
    own_part,
    refuse_copy,
    refuse_named_state,
    refuse_parts,
    share_shapes,
    share_state_dict,
)
from rode._shared_step import SharedSteps, make_share
from rode._torch_state import to_torch
from rode._wholes import Wholes, make_wholes
from rode.routing import Reasons, param_groups, warn_of_rest, warn_of_vocabularies

_IMMUTABLE = frozenset((float, int, bool, str, type(None)))


def _is_fixed(value: Any) -> bool:
    """Whether it cannot change in place."""
    return type(value) in _IMMUTABLE or (type(value) is tuple and all(map(_is_fixed, value)))


def _tensors(group: dict[str, Any]) -> list[torch.Tensor]:
    """Those among the options, alone or in lists."""
    given = [value for key, value in group.items() if key not in NO_OPTIONS]
    parts = (value if isinstance(value, (list, tuple)) else [value] for value in given)
    return [part for part in chain.from_iterable(parts) if isinstance(part, torch.Tensor)]


Params = torch.nn.Module | Iterable[Any]
# A torch.distributed.ProcessGroup, True for all processes, None for this one alone. Any: torch may
# be built without it.
Group: TypeAlias = Any


def given(arguments: dict[str, Any]) -> dict[str, Any]:
    """The options among a constructor's arguments."""
    own = {"self", "params", "route", "__class__"}
    return {key: value for key, value in arguments.items() if key not in own}


class EngineOptimizer(Groups):
    """An optimizer whose steps are the engine's, on memory that is torch's.

    Parameters, gradients and state stay torch tensors: the engine works on their addresses. It is
    built at the first step, and again where parameters, devices, types or fixed options have
    changed; state is kept.
    """

    # What becomes of gradients that are not finite; copies of earlier releases have none.
    _on_non_finite = "refuse"
    _share: SharedSteps | Wholes | None = None  # of several processes: what this one steps

    def __init__(
        self,
        params: Params,
        family: str,
        route: str,
        options: dict[str, Any],
        extra: dict[str, Any] | None = None,
    ) -> None:
        self._share = make_share(options.pop("process_group", None), options.pop("timeout", None))
        try:
            self._construct(params, family, route, options, dict(extra or {}))
            if self._delegates:  # here: the warning counts frames to the line that is meant
                warn_of_vocabularies(self.param_groups)
                warn_of_rest(self._reasons.rest_share, self._reasons.choice)
        except Exception as error:
            if isinstance(self._share, SharedSteps):
                with suppress(_engine.Error):  # of ranks that do not answer: this one says more
                    self._share.report(error)
            raise
        if isinstance(self._share, SharedSteps):
            self._share.make(self)
        else:
            self._share = make_wholes(self)

    def _construct(
        self,
        params: Params,
        family: str,
        route: str,
        options: dict[str, Any],
        extra: dict[str, Any],
    ) -> None:
        wanted = options.pop("preset", None)
        self._name = name = preset(family, options) if wanted is None else named(family, wanted)
        self._reasons = Reasons()
        self._reset()
        self._on_non_finite = gradient_policy(name, options.pop("on_non_finite", "refuse"))
        if "couple_lr_rho" in options:
            extra["couple_lr_rho"] = options.pop("couple_lr_rho")
        defaults = complete(name, options)
        self._keys = list(defaults)
        defaults.update(extra)
        defaults.update(rule="auto", route=route, layout="out_in", steps_done=0)
        if isinstance(params, torch.nn.Module):
            params = param_groups(params, route=route)
        self._constructed = False
        super().__init__(params, defaults)
        self._constructed = True
        self._check_together()

    def _reset(self) -> None:
        self._delegates = _engine.leaves_rest_to_adamw(self._name)
        self._binding: Binding | None = None
        # Engines that a CUDA graph replays steps of: the graph works on their memory.
        self._captured: list[Binding] = []

    # ---- Steps ------------------------------------------------------------------------------

    @torch.compiler.disable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step. `closure`, where given, computes the loss and the gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Parameters may have become DTensors since the constructor, as under Accelerate: then the
        # engine is made for a share.
        binding = self._ready() if self._share is None else None
        if self._share is not None:
            self._share.step(self)
        elif binding is not None:
            binding.step()
        return loss

    def _ready(self) -> Binding:
        """The engine, with the options as they are now."""
        binding = self._bound()
        return binding if self._send_options(binding) else self._build()

    def scale_heads(self, name: str, factors: Sequence[float] | torch.Tensor) -> None:
        """Multiplies the rows of a query or key projection by one factor per head (QK-clip), in
        place; a radius that the optimizer keeps follows. Rows are those of the fan-out."""
        if self._share is not None:
            raise _engine.Error(HEADS_OF_PARTS)
        scale_heads(name, factors, self.param_groups, self.state)

    def send_options(self) -> None:
        """Sends edited options to the device without a step: for steps that a CUDA graph replays,
        such as after `scheduler.step()`. Steps outside of a graph do it by themselves."""
        if self._binding is None:
            return
        if not self._send_options(self._binding):
            raise _engine.Error(
                "[send options] a fixed option has changed, and a graph keeps those of its "
                "capture; step outside of the graph and capture it again"
            )
        self._binding.follow_stream()
        self._binding.engine.send_options()

    def _bound(self) -> Binding:
        """The engine on the parameters and the state as they are now."""
        binding = self._binding
        if binding is not None and binding.follow(self.param_groups, self.state):
            return binding
        return self._build()

    def _build(self) -> Binding:
        refuse_capture(self.param_groups)
        self._drop()
        groups = self.param_groups
        if self._share is None:
            self._share = make_wholes(self)
        if self._share is not None:
            self._share.follow(self)
            groups = self._share.groups(groups)
        effective = [self._effective(group) for group in self.param_groups]
        methods = [self._method(group) for group in self.param_groups]
        self._adopt_state(None if self._share is None else self._share.shape)
        binding = Binding(groups, self.state, methods, self._on_non_finite, self._share)
        binding.engine.set_steps_done(max(g.get("steps_done", 0) for g in self.param_groups))
        self._sent = effective
        self._seen: list[list[Any] | None] = [None] * len(self.param_groups)
        for index in range(len(self.param_groups)):
            self._remember(index)
        self._binding = binding
        if self._share is not None:
            self._share.built()
        release_at_exit(self)
        return binding

    def _remember(self, index: int) -> None:
        """What `_send_options` compares with; None: values that may change in place."""
        group = self.param_groups[index]
        fixed = all(_is_fixed(value) or key in NO_OPTIONS for key, value in group.items())
        self._seen[index] = list(group.values()) if fixed else None

    def _send_options(self, binding: Binding) -> bool:
        """Sends changes in the groups to the engine; False: it must be rebuilt."""
        for index, group in enumerate(self.param_groups):
            seen, values = self._seen[index], list(group.values())
            scheduled = False
            if seen is not None and len(seen) == len(values):
                if all(map(is_, seen, values)):
                    continue
                rows = zip(group, values, seen, strict=True)
                # After a scheduler's step only the rate is another.
                scheduled = [key for key, now, before in rows if now is not before] == ["lr"]
            if not scheduled or type(group["lr"]) is not float:
                if any(is_capturing(tensor.device) for tensor in _tensors(group)):
                    continue  # not to be read now: as it was sent last
            sent = self._sent[index]
            if scheduled:
                rest = self._delegates and group["rule"] == "rest"
                key, lr = "lr_rest" if rest else "lr", rate(group)
                if lr != sent[key]:
                    binding.engine.set_number(index, key, lr)
                    sent[key] = lr
            else:
                options = self._effective(group)
                if options != sent:
                    if not binding.engine.set_options(index, self._name, settings(options)):
                        return False
                    self._sent[index] = options
                binding.engine.set_coupling(index, self._coupling(group))
            if scheduled and type(group["lr"]) is float:
                self._seen[index] = values
            else:
                self._remember(index)
        return True

    # ---- State ------------------------------------------------------------------------------

    def _note_steps(self) -> None:
        """The count belongs to a checkpoint: it selects the bits of stochastic rounding."""
        if self._binding is not None:
            done = self._binding.settled().steps_done()
            for group in self.param_groups:
                group["steps_done"] = done

    def _release(self) -> None:
        if self._binding is not None and self._binding.captured:
            self._captured.append(self._binding)
        self._binding = None

    def _drop(self) -> None:
        self._note_steps()
        self._release()

    def state_dict(self) -> dict[str, Any]:
        """As torch's. Those of AdamW and SGD have the keys and types of torch.optim's own and load
        there, too. With `process_group` it holds this process's share alone."""
        return self._all_state() if self._share is None else share_state_dict(self, self._share)

    def consolidated_state_dict(self, to: int | None = 0) -> dict[str, Any] | None:
        """The state dict of the whole, which loads with any number of processes, also without
        `process_group`. All processes call it; it is on rank `to` of them, or on all (None), and
        None elsewhere."""
        if self._share is None:
            refuse_parts(self.param_groups)
            return self._all_state()
        return consolidated(self, self._share, to)

    def _all_state(self) -> dict[str, Any]:
        self._note_steps()
        names = self._torch_names
        if names is None:
            return super().state_dict()
        hook = self.register_state_dict_post_hook(lambda _, given: to_torch(given, names), True)
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but state keeps its own types: fp32 momentum of bf16 weights stays fp32.
        AdamW and SGD take those of torch.optim's own, too. What does not fit is refused, and
        nothing has changed then."""
        final: dict[str, Any] = {}

        def remember(_: torch.optim.Optimizer, given: dict[str, Any]) -> dict[str, Any]:
            if self._share is not None:
                self._share.before_load(self, given["param_groups"])
            shapes = share_shapes(given, self._share)
            loaded = self._loadable(given, shapes)
            if self._share is not None and shapes is None:
                loaded = own_part(loaded, self._share)
            final.update(loaded)
            return final

        def restore(_: torch.optim.Optimizer) -> None:
            saved = chain.from_iterable(group["params"] for group in final["param_groups"])
            own = chain.from_iterable(group["params"] for group in self.param_groups)
            for number, parameter in zip(saved, own, strict=True):
                for key, value in final["state"].get(number, {}).items():
                    if isinstance(value, torch.Tensor):
                        copy = value.detach().to(parameter.device, copy=True)
                        self.state[parameter][key] = copy.contiguous()

        before = self.register_load_state_dict_pre_hook(remember)
        after = self.register_load_state_dict_post_hook(restore, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()
        if self._share is not None:
            self._share.after_load("share" in state_dict or bool(state_dict["state"]))

    def named_state(self) -> dict[str, torch.Tensor]:
        """State by the engine's names, "state.<parameter>.<key>": what `rode step` and the C++
        library read. For safetensors: save_file(optimizer.named_state(), path,
        optimizer.metadata()). The tensors are those of `state`, not copies."""
        refuse_named_state(self._share)
        return dict(self._bound().named_state)

    def metadata(self) -> dict[str, str]:
        """What belongs in a file together with `named_state`: the step count, the optimizer."""
        return self._bound().settled().metadata()

    @torch.no_grad()
    def load_named_state(
        self,
        tensors: Mapping[str, torch.Tensor],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Copies what `named_state` gave, or raises and copies nothing. Other names than
        "state." are ignored, so a file may hold the parameters too."""
        refuse_named_state(self._share)
        given = {name: value for name, value in tensors.items() if name.startswith("state.")}
        self._bound()
        before = self._take_starts(given)
        try:
            load_named_state(self._bound(), given, metadata)
        except BaseException:
            for p, entries in before.items():
                self.state[p] = entries
            raise

    def __getstate__(self) -> dict[str, Any]:
        refuse_copy(self._share)
        self._note_steps()
        own = {key: getattr(self, key) for key in ("_name", "_keys", "_reasons", "_on_non_finite")}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        present: list[dict[str, Any]] = list(self.__dict__.get("param_groups", []))
        super().__setstate__(state)
        if "_name" in state:  # a copy; load_state_dict brings state and groups only
            self._reset()
        else:
            self._release()
        present += [{}] * (len(self.param_groups) - len(present))
        for group, own in zip(self.param_groups, present, strict=True):
            self._fill(group, own)

    # ---- What the last step did ---------------------------------------------------------------

    def check(self) -> None:
        """Raises the error of a step that was refused since the last check, or that left weights
        which are not finite (then its `changed` is True: restore a checkpoint). On the CPU `step`
        itself raises it; on CUDA, where a step is enqueued, ask when you like to wait."""
        if self._binding is not None:
            self._binding.settled().check()

    def refused_steps(self) -> int:
        """How many steps were left out because a gradient was not finite. Waits for the device."""
        own = 0 if self._share is None else self._share.refused
        return own if self._binding is None else own + self._binding.refused_steps()

    def diagnostics(self) -> dict[str, Any]:
        """Norms of the last step over all parameters, and under `matrices` RODE's scalars of
        each matrix. Waits for the device."""
        if self._binding is None:
            return {}
        engine = self._binding.settled()
        more = {} if self._share is None else self._share.diagnostics
        return {**engine.global_diagnostics(), "matrices": {**engine.matrix_diagnostics(), **more}}

    def routing_table(self) -> str:
        """Which rule steps which parameter, with which rate and decay, and why, as a table."""
        return routing_table(self)
