"""Compiled optimizer steps: Dynamo runs the part that makes an optimizer's state for real, while it traces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramcast.card.compiled.visibility import Visibility
    from vramcast.card.device.patches import Patches


def install(put: Patches, visibility: Visibility) -> None:
    from torch._dynamo.variables.optimizer import OptimizerVariable

    def shown(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            with visibility.show():
                return original(*args, **kwargs)

        return call

    original = OptimizerVariable.call_method

    def call_method(variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        kind = type(variable.value)
        if name != "_init_group" or name not in vars(kind):
            return original(variable, tx, name, args, kwargs)
        method = vars(kind)[name]
        setattr(kind, name, shown(method))
        try:
            return original(variable, tx, name, args, kwargs)
        finally:
            setattr(kind, name, method)

    put.set(OptimizerVariable, "call_method", call_method)
    put.set(OptimizerVariable, "move_step_if_cpu", shown(OptimizerVariable.move_step_if_cpu))
