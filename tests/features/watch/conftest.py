"""Cards to watch."""

from __future__ import annotations

from tests.gpus.conftest import cards_here

__all__ = ["cards_here"]
