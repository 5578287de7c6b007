"""NVML at the level of its C calls: a library that records them, and one that answers from a recording.

Both stand where `pynvml` keeps the loaded library, so that its own code (struct versions, sizes asked first, "not
available" values) runs as it does on a real machine. A call is written down as

    {"call": "nvmlDeviceGetTemperature", "args": ["device 0", 0], "code": 0, "out": [41]}

`args` are what goes in by value, with "buffer" for an array to be filled; `out` is what the call filled, by the names
of the struct's fields. Handles are numbered in the order in which they were seen.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

Call = dict[str, Any]

NOT_FOUND = 6
FUNCTION_NOT_FOUND = 13


@contextlib.contextmanager
def use_library(library: Any) -> Iterator[None]:
    """pynvml asks `library`."""
    import pynvml

    before = pynvml.nvmlLib
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = library
    try:
        yield
    finally:
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib = before


class Recorder:
    """Passes every call on to the real library and writes it down."""

    def __init__(self, library: Any) -> None:
        self.calls: list[Call] = []
        self._library = library
        self._handles: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._library, name)
        if name == "nvmlErrorString":
            return real  # pynvml sets its result type

        def call(*args: Any) -> int:
            given = [self._given(arg) for arg in args]
            code = int(real(*args))
            filled = [self._filled(arg) for arg in args if _is_output(arg)]
            if code not in (0, 7):  # an error fills nothing; "insufficient size" says how much is needed
                filled = []
            kept = [value for value in given if value is not _OUTPUT]
            self.calls.append({"call": name, "args": kept, "code": code, "out": _only_counted(filled)})
            return code

        return call

    def _given(self, arg: Any) -> Any:
        if isinstance(arg, ctypes._Pointer):
            return self._handle(arg)
        return _given(arg)

    def _filled(self, arg: Any) -> Any:
        held = _held(arg)
        return self._handle(held) if isinstance(held, ctypes._Pointer) else _plain(held)

    def _handle(self, pointer: Any) -> str:
        address = ctypes.cast(pointer, ctypes.c_void_p).value or 0
        return self._handles.setdefault(address, f"device {len(self._handles)}")


class Replayer:
    """Answers from the calls of a recording; the same question asked again gets the next answer, or the last one."""

    def __init__(self, calls: list[Call]) -> None:
        self._answers: dict[str, list[Call]] = {}
        for call in calls:
            self._answers.setdefault(_key(call["call"], call["args"]), []).append(call)
        self._known = {call["call"] for call in calls}
        self._handles: list[str] = []
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "nvmlErrorString":
            return lambda code: f"error {code.value if hasattr(code, 'value') else code}".encode()
        if name not in self._known:
            raise AttributeError(name)  # an older driver: pynvml says "function not found"

        def call(*args: Any) -> int:
            self.asked.append(name)
            given = [self._given(arg) for arg in args]
            key = _key(name, [value for value in given if value is not _OUTPUT])
            if key not in self._answers:
                return NOT_FOUND
            answers = self._answers[key]
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            for arg, value in zip((arg for arg in args if _is_output(arg)), answer["out"], strict=False):
                self._fill(_held(arg), value)
            return int(answer["code"])

        return call

    def _given(self, arg: Any) -> Any:
        if isinstance(arg, ctypes._Pointer):
            address = ctypes.cast(arg, ctypes.c_void_p).value or 0
            return self._handles[address - 1]
        return _given(arg)

    def _fill(self, held: Any, value: Any) -> None:
        if isinstance(held, ctypes._Pointer):
            if value not in self._handles:
                self._handles.append(value)
            # A handle is never looked into; its number in the list is address enough.
            address = ctypes.c_void_p(self._handles.index(value) + 1)
            ctypes.memmove(ctypes.addressof(held), ctypes.addressof(address), ctypes.sizeof(address))
        elif isinstance(held, ctypes.Structure):
            _fill_struct(held, value)
        elif isinstance(held, ctypes.Array) and held._type_ is ctypes.c_char:
            held.value = value.encode()
        elif isinstance(held, ctypes.Array):
            for slot, content in zip(held, value, strict=False):
                _fill_struct(slot, content)
        else:
            held.value = value


_OUTPUT = object()


def _is_output(arg: Any) -> bool:
    return type(arg).__name__ == "CArgObject" or isinstance(arg, ctypes.Array)


def _held(arg: Any) -> Any:
    return arg._obj if type(arg).__name__ == "CArgObject" else arg


def _given(arg: Any) -> Any:
    """The arguments of a call; a place to be filled is none, but that it exists tells two calls apart."""
    if arg is None or isinstance(arg, int):
        return arg
    if isinstance(arg, ctypes.Array):
        return _OUTPUT if arg._type_ is ctypes.c_char else "buffer"
    if type(arg).__name__ == "CArgObject":
        return _OUTPUT
    return int(arg.value)


def _plain(held: Any) -> Any:
    if isinstance(held, ctypes.Structure):
        return {field[0]: _plain(getattr(held, field[0])) for field in held._fields_}
    if isinstance(held, ctypes.Array) and held._type_ is ctypes.c_char:
        return held.value.decode(errors="replace")
    if isinstance(held, ctypes.Array):
        return [_plain(item) for item in held]
    return held.value if hasattr(held, "value") else held


def _fill_struct(struct: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(struct, name, value)


def _only_counted(filled: list[Any]) -> list[Any]:
    """The counted part of an array with room to spare."""
    if len(filled) == 2 and isinstance(filled[0], int) and isinstance(filled[1], list):
        return [filled[0], filled[1][: filled[0]]]
    return filled


def _key(name: str, args: list[Any]) -> str:
    return f"{name}{args}"
