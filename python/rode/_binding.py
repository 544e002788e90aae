# SPDX-License-Identifier: Apache-2.0
"""One engine on the memory of torch tensors: builds it, follows the tensors, steps."""

import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch

from rode import _engine
from rode._checks import (
    STEPPED,
    check_gradient,
    check_memory,
    check_parameter,
    names_of,
    one_device,
    repeated,
)
from rode._engine import Error
from rode._options import Method
from rode._stored_state import TENSOR_TYPES, TYPE_NAMES, began_at_zero, check_form
from rode._shards import (
    Agreement,
    batches,
    first_element,
    is_dtensor,
    local,
    make_agreement,
    norm_over,
    placed,
    refuse_forms,
    spread,
    whole_names,
)

# torch 2.10 and later: C functions that read a tensor's address and form.
_EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def _version_counter() -> Callable[[list[torch.Tensor]], None]:
    """Autograd must see that weights changed, though no torch operation wrote them."""
    increment = torch.autograd.graph.increment_version
    try:
        increment([torch.empty(0)])
    except (TypeError, AttributeError, RuntimeError):  # older: one tensor at a time

        def each(tensors: list[torch.Tensor]) -> None:
            for tensor in tensors:
                increment(tensor)

        return each
    return increment


_increment_version = _version_counter()


def current_stream(device: torch.device) -> int:
    """Its address; 0 where there are none."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def engine_on(
    device: torch.device,
    on_non_finite: str,
    share: bool,
    specs: list[Any],
    memory: Callable[[str, str, list[int], str], tuple[int, bool]],
    notify: Callable[[str], object],
) -> _engine.Engine:
    """An engine that works on the memory of tensors there."""
    # The engine takes the current device for its own.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        return _engine.Engine(
            device.type,
            current_stream(device),
            torch.get_num_threads(),
            on_non_finite,
            share,
            specs,
            _EXCHANGE,
            torch.float32,
            torch.bfloat16,
            memory,
            notify,
        )


class Binding:
    """The engine, the tensors whose addresses it holds, and what it was last given."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        state: dict[torch.Tensor, dict[str, Any]],
        methods: list[Method],
        on_non_finite: str,
        share: Any = None,
    ) -> None:
        # Of several processes: what this one steps (_share.py); the groups hold nothing else.
        self._share = share
        self.params = [p for group in groups for p in group["params"]]
        self.sizes = [len(group["params"]) for group in groups]
        self.names = names_of(groups)
        refuse_forms(groups, self.names)
        self._refuse_parts(groups, methods)
        # What this process steps: of a DTensor its part.
        self._locals = [self._local(p) for p in self.params]
        self._agreement = make_agreement(groups, methods, self.names)
        self.device = one_device(self.names, self.params)
        self._check_parameters()
        self.state = state
        # Non-contiguous weights are stepped in a copy: index, copy.
        self._copies: list[tuple[int, torch.Tensor]] = []
        # References keep the memory alive that the engine steps on, whatever becomes of `state`.
        self._entries: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self._fresh: list[tuple[dict[str, Any], str]] = []
        self.named_state: dict[str, torch.Tensor] = {}
        self._by_name = dict(zip(self.names, self.params, strict=True))
        self._batches = {id(p) for p in batches(groups, methods, self.names)}
        # Those that had state before: all of their keys must be there.
        self._resumed = {name for name, p in self._by_name.items() if state.get(p)}

        specs = []
        values = iter(self._value_addresses())
        labels, own = iter(self.names), iter(self._locals)
        for group, method in zip(groups, methods, strict=True):
            layout = group["layout"]
            members = [
                (part, next(labels), next(values), list(part.shape), TYPE_NAMES[part.dtype],
                 layout, self._start(method, p), self._first_element(p))
                for part, p in zip(islice(own, len(group["params"])), group["params"])
            ]  # fmt: skip
            specs.append((*method, members))
        # The engine sees of them the copies alone.
        self._copied_forms = [(index, _form(self._locals[index])) for index, _ in self._copies]
        self.captured = False
        self._skips = on_non_finite == "skip"  # gradients that are not finite
        self._stream = current_stream(self.device)
        try:
            self.engine = self._make_engine(specs, on_non_finite)
        except BaseException:
            # Or the next try would take these zeros for state of an earlier engine.
            for entries, key in self._fresh:
                del entries[key]
            raise
        stepped = {id(entries) for entries, _, _ in self._entries}
        # Those of `state` that the engine works on, in its order.
        self._owners = [(p, entries) for p, entries in state.items() if id(entries) in stepped]

    # ---- Building ---------------------------------------------------------------------------

    def _local(self, p: torch.Tensor) -> torch.Tensor:
        own: torch.Tensor = local(p) if self._share is None else self._share.local(p)
        return own

    def _first_element(self, p: torch.Tensor) -> int:
        first: int = first_element(p) if self._share is None else self._share.first_element(p)
        return first

    def _start(self, method: Method, p: torch.Tensor) -> bool | None:
        """Whether a matrix began at zero, where that is known; of a batch that lies on several
        ranks, all of them must say the same."""
        known = began_at_zero(self.state.get(p, {}))
        divided = self._share is not None and self._share.divides(p)
        if known is None and (divided or id(p) in self._batches):
            limit = _engine.zero_norm(*method[:2])
            known = None if limit is None else norm_over(p) <= limit
        return known

    def _make_engine(self, specs: list[Any], on_non_finite: str) -> _engine.Engine:
        share = self._share is not None
        return engine_on(self.device, on_non_finite, share, specs, self._state_memory, _warn)

    def _refuse_parts(self, groups: list[dict[str, Any]], methods: list[Method]) -> None:
        """Of what must be stepped as a whole, and is not here (_wholes.py)."""
        for name in whole_names(groups, methods, self.names):
            p = dict(zip(self.names, self.params, strict=True))[name]
            if self._share is None or not self._share.is_whole(p):
                raise Error(
                    f"[parameters] parameter '{name}' is a DTensor, which {methods[0][0]} steps as "
                    "a whole; make a new optimizer after parameters have become DTensors"
                )

    def _check_parameters(self) -> None:
        """As at construction: parameters may have changed since."""
        for name, p in zip(self.names, self.params, strict=True):
            check_parameter(name, p)
        twice = repeated(self.names, self.params)
        if twice:
            raise Error(f"[parameters] {twice}")
        check_memory(self.names, self._locals)

    def _value_addresses(self) -> list[int]:
        self._copies.clear()
        addresses: list[int] = []
        for index, p in enumerate(self._locals):
            value = p.detach()
            if not value.is_contiguous():
                value = value.contiguous()
                self._copies.append((index, value))
            addresses.append(value.data_ptr())
        return addresses

    def _state_memory(self, name: str, key: str, shape: list[int], dtype: str) -> tuple[int, bool]:
        p = self._by_name[name]
        entries = self.state[p]
        held = None if self._share is None else self._share.held_state(p, key)
        if held is not None:
            buffer, kept = held
            self._entries.append((entries, key, entries[key]))
            self.named_state[f"state.{name}.{key}"] = buffer
            return buffer.data_ptr(), kept
        tensor = entries.get(key)
        wanted = TENSOR_TYPES[dtype]
        if tensor is None:
            if name in self._resumed:
                raise Error(
                    f"[state] parameter '{name}' has state {sorted(entries)}, but no '{key}'; it "
                    "belongs to another optimizer or other options"
                )
            tensor = torch.zeros(shape, dtype=wanted, device=p.device)
            if self._is_spread(p, wanted):
                tensor = spread(tensor, p, id(p) in self._batches)
            entries[key] = tensor
            self._fresh.append((entries, key))
            kept = False
        else:
            kept = True
            if self._is_spread(p, wanted):
                shape = [p.shape[0], *shape[1:]] if id(p) in self._batches else list(p.shape)
            check_form(name, key, tensor, shape, wanted)
            if tensor.device != p.device or not tensor.is_contiguous():
                tensor = entries[key] = tensor.to(p.device).contiguous()
            if self._is_spread(p, wanted):
                tensor = entries[key] = placed(tensor, p)
        self._entries.append((entries, key, tensor))
        self.named_state[f"state.{name}.{key}"] = tensor
        return local(tensor).data_ptr(), kept

    def _is_spread(self, p: torch.Tensor, dtype: torch.dtype) -> bool:
        """Whether state of this type lies as the DTensor does; counts are whole on every rank."""
        if not is_dtensor(p) or self._local(p) is not local(p):
            return False
        return dtype is not torch.int64 or id(p) in self._batches

    # ---- Following --------------------------------------------------------------------------

    def follow(self, groups: list[dict[str, Any]], state: dict[torch.Tensor, Any]) -> bool:
        """Binds the weights as they lie now; False: parameters or state differ from the start."""
        if state is not self.state or len(groups) != len(self.sizes):
            return False
        if not (_engine.holds(state, self._owners) and _engine.same(self._entries)):
            return False
        if any(_form(self._locals[index]) != form for index, form in self._copied_forms):
            return False
        if self._share is not None:
            if not self._share.follows(groups, state):
                return False
            groups = self._share.groups(groups)
        params = [group["params"] for group in groups]
        if self._agreement is not None or self._share is not None:
            params = [list(map(self._local, members)) for members in params]
        return self.engine.follow_values(params)

    def _bind_copy(self, index: int, grad: Any) -> torch.Tensor:
        """For a gradient that the engine cannot take as it is."""
        name, p = self.names[index], self._locals[index]
        check_gradient(name, grad, p)
        dtype = grad.dtype if grad.dtype in STEPPED else torch.float32
        copy: torch.Tensor = grad.detach().to(dtype).contiguous()
        self.engine.bind_grad(index, copy.data_ptr(), TYPE_NAMES[dtype])
        return copy

    # ---- Stepping ---------------------------------------------------------------------------

    def follow_stream(self) -> None:
        """The engine's work comes after all that is on the current stream, and after its own on
        the stream before."""
        stream = current_stream(self.device)
        if stream != self._stream:
            self.engine.set_stream(stream)
            self._stream = stream

    def settled(self) -> _engine.Engine:
        """The engine, for what waits for the steps so far: those on the current stream, too,
        where a CUDA graph replayed them."""
        if is_capturing(self.device):
            raise Error(
                "[capture] the current stream is being captured, and the results of steps cannot "
                "be read then; ask after the capture"
            )
        self.follow_stream()
        return self.engine

    def refused_steps(self) -> int:
        own = 0 if self._agreement is None else self._agreement.refused
        return own + self.settled().refused_steps()

    def step(self) -> None:
        parts = {} if self._agreement is None else self._agreed_gradients(self._agreement)
        failed = True
        try:
            self._step(parts)
            failed = False
        finally:
            self.engine.release_grads()
            # On CUDA a step is only enqueued: nothing is known yet.
            if self._agreement is not None and self.device.type == "cpu":
                elsewhere = self._agreement.any_failed(failed) and not failed
            else:
                elsewhere = False
        if elsewhere:
            error = Error(
                "[step] the step failed on another rank, but was made on this one; restore a "
                "checkpoint on every rank; see the error of that rank"
            )
            error.changed = True
            raise error

    def step_parts(self, parts: dict[int, torch.Tensor], left: list[int]) -> None:
        """A step on which the processes have agreed: with the gradients of the parts that this one
        steps of parameters, by index, and without some parameters."""
        try:
            self._step(parts, left)
        finally:
            self.engine.release_grads()

    def _agreed_gradients(self, agreement: Agreement) -> dict[int, torch.Tensor]:
        if is_capturing(self.device):
            raise Error(
                "[capture] the ranks agree on every step of DTensors, which a CUDA graph cannot "
                "hold; step outside of the capture"
            )
        return agreement.gradients(self._skips)

    def _step(self, parts: dict[int, torch.Tensor], left: Iterable[int] = ()) -> None:
        others = self.engine.follow_grads()
        # Alive until the step is enqueued. The part of a parameter has its gradient elsewhere.
        given = [(index, self._locals[index].grad) for index in others]
        kept = [self._bind_copy(index, grad) for index, grad in (*given, *parts.items())]
        for index in left:
            self.engine.bind_grad(index, 0, "F32")
        for index, copy in self._copies:
            copy.copy_(self._locals[index].detach())
        if self.device.type == "cuda":
            self.follow_stream()
            self.captured = self.captured or is_capturing(self.device)
        try:
            self.engine.step(1.0)
        except Error as error:
            if error.changed:  # made, with a result that is not finite
                self._write_back()
            raise
        except BaseException:  # a warning made an error: the step was performed
            self._write_back()
            raise
        self._write_back()
        del kept

    def _write_back(self) -> None:
        """What torch must see of a step."""
        moved = self.params
        if self.engine.lacks_grads():
            moved = [p for p in moved if p.grad is not None]
        for index, copy in self._copies:
            if self.params[index].grad is not None:
                self._locals[index].detach().copy_(copy)
        _increment_version(moved)
        if self._agreement is not None:
            _increment_version([local(p) for p in moved if is_dtensor(p)])


def _form(p: torch.Tensor) -> tuple[Any, ...]:
    return p.shape, p.stride(), p.dtype, p.device


def is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured there: reading values would break it."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def refuse_capture(groups: list[dict[str, Any]]) -> None:
    """Before an engine is built, which allocates and waits."""
    device = next((p.device for group in groups for p in group["params"]), None)
    if device is not None and is_capturing(device):
        raise Error(
            "[capture] the stream is being captured, but the optimizer has not stepped these "
            "parameters with these options before; step once before it (PyTorch's warm-up)"
        )
