"""Takes values to be logged, and keeps nothing."""

from __future__ import annotations

from typing import Any


class Logger:
    def __init__(self, *arguments: Any, **options: Any) -> None: ...

    def log_value(self, name: str, value: float, step: int | None = None) -> None: ...


def configure(*arguments: Any, **options: Any) -> None: ...


def log_value(name: str, value: float, step: int | None = None) -> None: ...
