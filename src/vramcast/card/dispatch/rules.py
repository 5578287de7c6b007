"""Rules that a user registers for kernels vramcast does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from vramcast.base.errors import UsageError
from vramcast.card.ops import KERNELS, Call
from vramcast.card.values import known_values as values

Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)

TRITON = "triton::"

TRITON_RULES: dict[str, Rule] = {}
"""Triton kernels do not pass through the dispatcher: by the name of their function."""


def rule(name: str) -> Callable[[F], F]:
    """Say what a kernel allocates: a function of the op's arguments that returns empty outputs.

    `name` is "namespace::op" (all overloads), "namespace::op.overload", or "triton::function" for a Triton kernel,
    which returns nothing. Inside, tensors say "cuda" as they do in the program; a tensor that the function makes and
    drops counts as scratch memory of the kernel.

        @vramcast.rule("my_kernels::fused_norm")
        def fused_norm(x, weight, eps):
            return torch.empty_like(x), torch.empty(x.shape[:-1], device=x.device, dtype=torch.float32)
    """
    namespace, colons, op = name.partition("::")
    if not (namespace and colons and op):
        raise UsageError(f'a rule needs the whole name of an op, as "namespace::op", not {name!r}')

    def register(function: F) -> F:
        if name.startswith(TRITON):
            TRITON_RULES[name.removeprefix(TRITON)] = function
        else:
            KERNELS[name] = as_kernel(function)
        return function

    return register


def as_kernel(function: Rule) -> Callable[[Call], Any]:
    def kernel(call: Call) -> Any:
        with call.mode.machine.as_program():
            out = function(*call.args, **call.kwargs)
        call.mode.adopt(out, call.device)
        for position, argument in enumerate(call.func._schema.arguments):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and position < len(call.args) and hasattr(call.args[position], "is_meta"):
                values.forget(call.args[position])
        return out

    return kernel
