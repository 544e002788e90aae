# SPDX-License-Identifier: Apache-2.0
"""One engine on the memory of torch tensors: builds it, follows the tensors, steps."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from rode import _engine
from rode._engine import Error

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.uint16: "U16",
}
_TENSOR_TYPES = {text: dtype for dtype, text in _DTYPES.items()}
_STEPPED = (torch.float32, torch.bfloat16)
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


class Binding:
    """The engine, the tensors whose addresses it holds, and what it was last told."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        state: dict[torch.Tensor, dict[str, Any]],
        methods: list[tuple[str, list[tuple[str, str]], str]],
        on_non_finite: str,
    ) -> None:
        self.params = [p for group in groups for p in group["params"]]
        self.sizes = [len(group["params"]) for group in groups]
        self.names = names_of(groups)
        self.device = _one_device(self.params, self.names)
        self.state = state
        # Non-contiguous weights are stepped in a copy: index, copy.
        self._copies: list[tuple[int, torch.Tensor]] = []
        # References keep the memory alive that the engine steps on, whatever becomes of `state`.
        self._entries: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self._fresh: list[tuple[dict[str, Any], str]] = []
        self.named_state: dict[str, torch.Tensor] = {}
        self._by_name = dict(zip(self.names, self.params, strict=True))
        # Those that had state before: all of their keys must be there.
        self._resumed = {name for name, p in self._by_name.items() if state.get(p)}

        specs = []
        values = iter(self._value_addresses())
        labels = iter(self.names)
        for group, (name, settings, route) in zip(groups, methods, strict=True):
            transposed = group["layout"] == "in_out"
            members = [
                (p, next(labels), next(values), list(p.shape), _DTYPES[p.dtype], transposed)
                for p in group["params"]
            ]
            specs.append((name, settings, route, members))
        # The engine sees of them the copies alone.
        self._copied_forms = [(index, _form(self.params[index])) for index, _ in self._copies]
        self.captured = False
        self._stream = self._current_stream()
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

    def _make_engine(self, specs: list[Any], on_non_finite: str) -> _engine.Engine:
        # The engine takes the current device for its own.
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            return _engine.Engine(
                self.device.type,
                self._stream,
                torch.get_num_threads(),
                on_non_finite,
                specs,
                _EXCHANGE,
                torch.float32,
                torch.bfloat16,
                self._state_memory,
                _warn,
            )

    def _value_addresses(self) -> list[int]:
        self._copies.clear()
        addresses: list[int] = []
        seen: dict[int, str] = {}
        for index, (name, p) in enumerate(zip(self.names, self.params, strict=True)):
            _refuse_shards(name, p)
            if p.dtype not in _STEPPED or p.layout is not torch.strided:
                kind = p.dtype if p.layout is torch.strided else p.layout
                raise Error(
                    f"[parameters] parameter '{name}' is {kind}; weights must be dense, float32 "
                    "or bfloat16"
                )
            value = p.detach()
            if any(n > 1 and step == 0 for n, step in zip(p.shape, p.stride(), strict=True)):
                raise Error(
                    f"[parameters] parameter '{name}' is expanded: several of its elements share "
                    "one place in memory; make it from a clone()"
                )
            if not value.is_contiguous():
                value = value.contiguous()
                self._copies.append((index, value))
            address = value.data_ptr()
            if p.numel() > 0 and address in seen:
                raise Error(
                    f"[parameters] '{seen[address]}' and '{name}' are two parameters on the same "
                    "memory and would be stepped twice; tie them as one Parameter object"
                )
            seen[address] = name
            addresses.append(address)
        return addresses

    def _state_memory(self, name: str, key: str, shape: list[int], dtype: str) -> tuple[int, bool]:
        p = self._by_name[name]
        entries = self.state[p]
        tensor = entries.get(key)
        wanted = _TENSOR_TYPES[dtype]
        if tensor is None:
            if name in self._resumed:
                raise Error(
                    f"[state] parameter '{name}' has state {sorted(entries)}, but no '{key}'; it "
                    "belongs to another optimizer or other options"
                )
            tensor = entries[key] = torch.zeros(shape, dtype=wanted, device=p.device)
            self._fresh.append((entries, key))
            kept = False
        else:
            kept = True
            if list(tensor.shape) != shape or tensor.dtype != wanted:
                raise Error(
                    f"[state] '{key}' of parameter '{name}' is {tensor.dtype} "
                    f"{tuple(tensor.shape)}; expected {wanted} {tuple(shape)}; load it with the "
                    "parameters and options that saved it"
                )
            if tensor.device != p.device or not tensor.is_contiguous():
                tensor = entries[key] = tensor.to(p.device).contiguous()
        self._entries.append((entries, key, tensor))
        self.named_state[f"state.{name}.{key}"] = tensor
        return tensor.data_ptr(), kept

    def _current_stream(self) -> int:
        if self.device.type != "cuda":
            return 0
        return torch.cuda.current_stream(self.device).cuda_stream

    # ---- Following --------------------------------------------------------------------------

    def follow(self, groups: list[dict[str, Any]], state: dict[torch.Tensor, Any]) -> bool:
        """Binds weights that moved; False: parameters or state are others than at the start."""
        if state is not self.state or len(groups) != len(self.sizes):
            return False
        if not (_engine.holds(state, self._owners) and _engine.same(self._entries)):
            return False
        if any(_form(self.params[index]) != form for index, form in self._copied_forms):
            return False
        return self.engine.follow_values([group["params"] for group in groups])

    def _bind_copy(self, index: int, grad: torch.Tensor) -> torch.Tensor:
        """For a gradient that the engine cannot take as it is."""
        name, p = self.names[index], self.params[index]
        if grad.layout is not torch.strided:
            raise Error(
                f"[step] gradient of '{name}' is {grad.layout}; expected a dense one; use "
                "sparse=False in its module"
            )
        if grad.shape != p.shape or grad.device != p.device:
            raise Error(
                f"[step] gradient of '{name}' is {tuple(grad.shape)} on {grad.device}; the "
                f"parameter is {tuple(p.shape)} on {p.device}"
            )
        dtype = grad.dtype if grad.dtype in _STEPPED else torch.float32
        copy = grad.detach().to(dtype).contiguous()
        self.engine.bind_grad(index, copy.data_ptr(), _DTYPES[dtype])
        return copy

    # ---- Stepping ---------------------------------------------------------------------------

    def follow_stream(self) -> None:
        """The engine's work comes after all that is on the current stream, and after its own on
        the stream before."""
        stream = self._current_stream()
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

    def step(self) -> None:
        try:
            self._step()
        finally:
            self.engine.release_grads()

    def _step(self) -> None:
        others = self.engine.follow_grads()
        # Alive until the step is enqueued.
        kept = [self._bind_copy(index, self.params[index].grad) for index in others]
        for index, copy in self._copies:
            copy.copy_(self.params[index].detach())
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
                self.params[index].detach().copy_(copy)
        _increment_version(moved)


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
            "[capture] the current stream is being captured, but the optimizer has not stepped "
            "these parameters with these options before; step at least once outside of the "
            "capture (PyTorch's warm-up), then capture"
        )


def _refuse_shards(name: str, p: torch.Tensor) -> None:
    """A part of a matrix has neither its norm nor its direction."""
    flat = getattr(p, "_is_flat_param", False) or getattr(p, "_fsdp_flattened", False)
    if flat or hasattr(p, "to_local"):
        kind = "flattened by FSDP" if flat else "a DTensor"
        raise Error(
            f"[parameters] parameter '{name}' is {kind}, a shard of the whole; rode steps whole "
            "matrices: train with DistributedDataParallel, or keep its module out of the sharding"
        )


def names_of(groups: list[dict[str, Any]]) -> list[str]:
    names: list[str] = []
    for group in groups:
        given = group.get("param_names")
        count = len(group["params"])
        names += given or [f"param.{len(names) + i}" for i in range(count)]
    return names


def _one_device(params: list[torch.Tensor], names: list[str]) -> torch.device:
    if not params:  # groups may be empty, as torch's
        return torch.device("cpu")
    device = params[0].device
    for name, p in zip(names, params, strict=True):
        if p.device != device:
            raise Error(
                f"[parameters] '{names[0]}' is on {device}, '{name}' on {p.device}; one optimizer "
                "steps one device; make one for each"
            )
    if device.type not in ("cpu", "cuda"):
        raise Error(f"[parameters] '{names[0]}' is on {device}; expected cpu or cuda")
    return device
