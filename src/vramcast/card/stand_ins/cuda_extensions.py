"""CUDA extensions that a program compiles while it runs (torch.utils.cpp_extension): they are not.

The build fails at once, as if the compiler had failed, whether there is a compiler here or not. A program that can do
without its extension goes on, and the answer says what it lacks.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from vramcast.card.dispatch.unknown import own_line
from vramcast.card.stand_ins.imports import when_imported

_MODULE = "torch.utils.cpp_extension"
_SOURCES = (".cu", ".cuh")

_restore: list[Callable[[], None]] = []


def install(note: Callable[..., None]) -> None:
    _restore.append(when_imported(_MODULE, functools.partial(_change, note=note)))


def remove() -> None:
    while _restore:
        _restore.pop()()


def _change(module: Any, note: Callable[..., None]) -> None:
    def refuse(name: str) -> None:
        text = f"the CUDA extension {name} was not compiled, and is missing: on a card the script would run its kernels"
        note("extension", text, own_line())
        raise RuntimeError(f"Error building extension '{name}': a virtual card compiles no CUDA extension")

    compile_one = module._jit_compile
    parameters = inspect.signature(compile_one)

    @functools.wraps(compile_one)
    def jit_compile(*args: Any, **kwargs: Any) -> Any:
        """What `load` and `load_inline` end in."""
        given = parameters.bind(*args, **kwargs).arguments
        if given.get("with_cuda") or _has_cuda(given["sources"]):
            refuse(given["name"])
        return compile_one(*args, **kwargs)

    build_all = module.BuildExtension.build_extensions

    @functools.wraps(build_all)
    def build_extensions(builder: Any) -> None:
        for extension in builder.extensions:
            if _has_cuda(extension.sources):
                refuse(extension.name)
        build_all(builder)

    module._jit_compile, module.BuildExtension.build_extensions = jit_compile, build_extensions
    _restore.append(functools.partial(setattr, module, "_jit_compile", compile_one))
    _restore.append(functools.partial(setattr, module.BuildExtension, "build_extensions", build_all))


def _has_cuda(sources: str | Iterable[str]) -> bool:
    return any(str(source).endswith(_SOURCES) for source in ([sources] if isinstance(sources, str) else sources))
