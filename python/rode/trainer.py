# SPDX-License-Identifier: Apache-2.0
"""Optimizers for trainers that make them by themselves, such as Hugging Face's."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from rode import _engine
from rode.routing import param_groups


def trainer_factory(kind: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """For `transformers.Trainer(optimizer_cls_and_kwargs=(rode.trainer_factory(rode.Muon), {...}))`.

    Given the class itself, Trainer hands over bare tensors, among which an embedding cannot be
    told from a layer. A factory gets the model. The dictionary holds the optimizer's options, and
    `route` and `overrides` as `rode.param_groups` has them; `learning_rate` and `weight_decay` of
    the TrainingArguments are not used.
    """

    def build(
        model: nn.Module,
        route: str = "auto",
        overrides: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Any:
        return kind(param_groups(model, route, overrides), route=route, **options)

    def factory(*given: Any, **_: Any) -> Callable[..., Any]:
        if given:  # releases that know classes only
            raise _engine.OptionError(
                "[trainer] this release of transformers hands over tensors instead of the model; "
                "expected one that calls factories, as 5.22 does; or pass "
                "optimizers=(optimizer, None) to Trainer"
            )
        return build

    return factory
