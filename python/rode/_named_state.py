# SPDX-License-Identifier: Apache-2.0
"""State by the engine's names, out of a file."""

from collections.abc import Mapping

import torch

from rode import _engine
from rode._binding import Binding
from rode._shards import is_dtensor, placed
from rode._stored_state import as_planned


def load_named_state(
    binding: Binding, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None
) -> None:
    """Copies it to where the engine has it, or raises and copies nothing."""
    given = {name: value for name, value in tensors.items() if name.startswith("state.")}
    here = binding.named_state
    given = as_planned(given, "", {k: (list(v.shape), v.dtype) for k, v in here.items()})
    for name in sorted(given.keys() ^ here.keys()):
        where = "not in this optimizer" if name in given else "absent"
        raise _engine.Error(f"[load state] '{name}' is {where}; load it with the parameters "
                            "and options that saved it")  # fmt: skip
    for name, value in given.items():
        if value.shape != here[name].shape or value.dtype != here[name].dtype:
            raise _engine.Error(
                f"[load state] '{name}' is {value.dtype} {tuple(value.shape)}; expected "
                f"{here[name].dtype} {tuple(here[name].shape)}"
            )
    saver = (metadata or {}).get("rode.optimizer")
    own = binding.settled().metadata()["rode.optimizer"]
    if saver is not None and saver != own:
        raise _engine.Error(
            f"[load state] saved by '{saver}', but the optimizer here is '{own}'; state of one "
            f"has a different meaning for the other; load it into '{saver}'"
        )
    if metadata and "rode.step" in metadata:
        steps = metadata["rode.step"]
        try:
            binding.engine.set_steps_done(int(steps))
        except (TypeError, ValueError):  # the engine's refusal among them
            raise _engine.Error(
                f"[load state] metadata 'rode.step' = '{steps}'; expected a step count; the "
                "file is damaged"
            ) from None
    for name, value in given.items():
        here[name].copy_(placed(value, here[name]) if is_dtensor(here[name]) else value)
