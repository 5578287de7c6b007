"""Takes everything that a script would send to Weights & Biases, and keeps nothing."""

from __future__ import annotations

from typing import Any


class _Nothing:
    """Whatever is asked of it, it answers with itself; a number where one is needed."""

    def __call__(self, *arguments: Any, **options: Any) -> _Nothing:
        return self

    def __getattr__(self, name: str) -> _Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key: Any) -> _Nothing:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return "nothing"


_nothing = _Nothing()
__version__ = "0.19.0"
run = _Nothing()


def __getattr__(name: str) -> _Nothing:
    if name.startswith("__"):
        raise AttributeError(name)
    return _nothing
