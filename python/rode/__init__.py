# SPDX-License-Identifier: Apache-2.0
"""Matrix optimizers for PyTorch over the rode engine.

    optimizer = rode.RODE(model)          # matrices by RODE, the rest by AdamW
    optimizer = rode.Muon(model, scale="rms", lr=5e-3)

Every class is a torch.optim.Optimizer. `param_groups` shows which parameter takes which rule.
"""

# Before the engine: one process has one C++ and one OpenMP runtime, those that torch brings.
import torch as _torch  # noqa: F401

try:
    from rode._engine import Error, OptionError, version
except ImportError as _error:
    from rode._missing import explained as _explained

    raise _explained(_error) from _error
from rode import one_rule as _one_rule
from rode import optimizers as _optimizers
from rode.one_rule import *  # noqa: F403
from rode.optimizers import *  # noqa: F403
from rode.routing import param_groups
from rode.trainer import trainer_factory

__version__ = version()
__all__ = ["Error", "OptionError", "param_groups", "trainer_factory"]
__all__ += _one_rule.__all__
__all__ += _optimizers.__all__
