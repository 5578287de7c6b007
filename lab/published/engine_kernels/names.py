"""Enumerations of the extension of which only the names matter."""

from __future__ import annotations

from typing import Any


class Name(str):
    """One value of an enumeration: equal to itself by name, and with the attributes of pybind11's enumerations."""

    @property
    def name(self) -> str:
        return str(self)

    def __int__(self) -> int:
        return abs(hash(str(self))) % 1000


class Names:
    """An enumeration that has every name one asks it for."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(name)

    def __or__(self, other: Any) -> Any:
        return Any

    def __ror__(self, other: Any) -> Any:
        return Any

    def __call__(self, *values: Any) -> Any:
        return Name(str(values))
