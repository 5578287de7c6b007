"""torch's compilers import some 1,300 modules. What is made of them and nothing here reads is left out or put off."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch.library
from torch._library import utils as library

from vramcast.base.factories import without_collections


@contextmanager
def quick_imports() -> Iterator[None]:
    """Inside, torch imports its compilers."""
    with ExitStack() as exits:
        exits.enter_context(without_collections(lasting=True))
        exits.enter_context(quick_registrations())
        exits.enter_context(_undocumented_dataclasses())
        exits.enter_context(_methods_when_called())
        exits.enter_context(_unbounded_caches_of_sympy())
        exits.enter_context(_templates_when_rendered())
        exits.enter_context(_ops_looked_up_once())
        yield


@contextmanager
def quick_registrations() -> Iterator[None]:
    """Where an op is registered, which torch has `inspect` look up in the source files of all modules: the frame says
    it, too."""
    with (
        patch.object(library, "get_source", _source),
        patch.object(torch.library, "inspect", altered(inspect, getmodule=_module_of)),
    ):
        yield


def _source(stacklevel: int) -> str:
    frame = sys._getframe(stacklevel)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _module_of(frame: FrameType) -> Any:
    return sys.modules.get(frame.f_globals.get("__name__", ""))


def altered(module: Any, **instead: Any) -> Any:
    """A module as one of its users sees it, with some names replaced."""
    return SimpleNamespace(**{**vars(module), **instead})


@contextmanager
def _undocumented_dataclasses() -> Iterator[None]:
    """The documentation of a dataclass that has none is its signature, which takes longer than to make the class."""
    original: Any = vars(dataclasses).get("inspect")
    if original is None:  # later versions of Python do it in another way
        yield
        return
    with patch.object(dataclasses, "inspect", altered(original, signature=lambda *_, **__: "()")):
        yield


@contextmanager
def _methods_when_called() -> Iterator[None]:
    """Each method of a dataclass is compiled from a text of its own, and hardly any of the compilers' is called."""
    create: Any = vars(dataclasses).get("_create_fn")
    if create is None:  # later versions of Python compile a class's methods together
        yield
        return
    represent: Any = vars(dataclasses)["_repr_fn"]  # wraps what is created

    def create_later(name: str, *args: Any, globals: Any = None, **options: Any) -> Any:
        make = functools.partial(create, name, *args, globals=globals, **options)
        return _LaterMethod(name, make) if _of_compilers(globals) and name != "__repr__" else make()

    def represent_later(fields: Any, globals: Any) -> Any:
        make = functools.partial(represent, fields, globals)
        return _LaterMethod("__repr__", make) if _of_compilers(globals) else make()

    with patch.multiple(dataclasses, _create_fn=create_later, _repr_fn=represent_later):
        yield


def _of_compilers(names: dict[str, Any] | None) -> bool:
    return str((names or {}).get("__name__")).startswith(_COMPILERS)


_COMPILERS = ("torch._dynamo", "torch._export", "torch._functorch", "torch._inductor", "torch.export", "torch.fx")


class _LaterMethod:
    """A method that is made when its class is first asked for it, and then takes this object's place there."""

    __slots__ = ("__name__", "_make")

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.__name__ = name
        self._make = functools.cache(make)

    def __get__(self, instance: Any, owner: type) -> Any:
        method = self._make()
        for cls in owner.__mro__:
            if vars(cls).get(self.__name__) is self:
                method.__qualname__ = f"{cls.__qualname__}.{self.__name__}"
                setattr(cls, self.__name__, method)
        return method.__get__(instance, owner)


@contextmanager
def _unbounded_caches_of_sympy() -> Iterator[None]:
    """sympy reads how many results of a function it may remember when it is imported: 1,000, unless it is told."""
    if "sympy" in sys.modules or _CACHE_SIZE in os.environ:
        yield
        return
    os.environ[_CACHE_SIZE] = "None"
    try:
        yield
    finally:
        del os.environ[_CACHE_SIZE]


_CACHE_SIZE = "SYMPY_CACHE_SIZE"


@contextmanager
def _templates_when_rendered() -> Iterator[None]:
    """Templates of kernels, which are compiled when they are loaded and hardly ever rendered."""
    if "torch._dynamo.convert_frame" not in sys.modules:  # too early to import what has them
        yield
        return
    from torch._inductor.codegen import common

    original = common.KernelTemplate._template_from_string
    with patch.object(
        common.KernelTemplate, "_template_from_string", staticmethod(functools.partial(_Later, original))
    ):
        yield


class _Later:
    """A template that is compiled at its first use."""

    def __init__(self, compile_template: Callable[[str], Any], source: str) -> None:
        self._make: Callable[[], Any] = functools.cache(lambda: compile_template(source))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)


@contextmanager
def _ops_looked_up_once() -> Iterator[None]:
    """A table of decompositions looks up all ops of C++, once for each namespace: the first time finds them all."""
    if "torch._dynamo.convert_frame" not in sys.modules:
        yield
        return
    from torch._export import utils

    original = utils._materialize_cpp_cia_ops
    with patch.object(utils, "_materialize_cpp_cia_ops", functools.cache(lambda: original())):
        yield
