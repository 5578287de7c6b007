"""What is needed to show a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vramcast.report.page import Page


@dataclass(frozen=True, slots=True)
class Look:
    document: Callable[[Any], dict[str, Any]]
    page: Callable[[Any], Page]
    screen: Callable[[Any, int], Page] | None = None
