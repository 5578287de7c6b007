"""DeepSpeed compiles its CUDA operators when a program first wants one: those of its optimizers are stood in for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from vramcast.card.dispatch.unknown import own_line
from vramcast.card.stand_ins.imports import when_imported

_MODULE = "deepspeed.ops.op_builder.builder"

_restore: list[Callable[[], None]] = []


def install(note: Callable[..., None]) -> None:
    _restore.append(when_imported(_MODULE, functools.partial(_change, note=note)))


def remove() -> None:
    while _restore:
        _restore.pop()()


def _change(module: Any, note: Callable[..., None]) -> None:
    builder = module.OpBuilder
    original = builder.load

    @functools.wraps(original)
    def load(self: Any, *args: Any, **kwargs: Any) -> Any:
        from vramcast.card.stand_ins.kernels.deepspeed_kernels import MODULES

        stand_in = MODULES.get(self.name)
        if stand_in is None:
            return original(self, *args, **kwargs)
        text = f"{self.name} is not compiled: a stand-in takes the memory that DeepSpeed's source takes"
        note("packages", text, own_line())
        return stand_in

    builder.load = load
    _restore.append(functools.partial(setattr, builder, "load", original))
