# SPDX-License-Identifier: Apache-2.0
"""Classes that torch.optim has too: its arguments and defaults, one rule and one rate for all."""

from typing import Any

from rode._base import EngineOptimizer, Params
from rode._engine import OptionError
from rode._options import every_key, live_keys


class TorchTwin(EngineOptimizer):
    """Takes torch's arguments; those that the engine does not know stay in the groups."""

    def __init__(self, params: Params, family: str, route: str, options: dict[str, Any]) -> None:
        own = {*every_key(family), "on_non_finite", "process_group", "timeout"}
        of_torch = {key: options.pop(key) for key in options.keys() - own}
        # None means the engine's default elsewhere; where defaults are torch's, it means nothing.
        for key in options.keys() & live_keys(family):
            if options[key] is None and not key.endswith("_rest"):
                raise OptionError(f"[{family}] option '{key}': expected a number, got None")
        if options.get("nesterov") and options["momentum"] == 0:
            raise OptionError(
                f"[{family}] nesterov = True with momentum = 0; expected momentum > 0"
            )
        super().__init__(params, family, route, options, of_torch)
