"""Answers `import apex` where it is not installed. apex.amp is no longer a part of it: torch.amp took its place."""

from __future__ import annotations

from typing import Any

from apex import normalization, optimizers  # type: ignore[import-not-found]

__version__ = "0.1"
__all__ = ["normalization", "optimizers"]


def __getattr__(name: str) -> Any:
    gone = ": it was removed from apex, torch.autocast and torch.amp.GradScaler do the same" if name == "amp" else ""
    raise ImportError(f"cannot import name {name!r} from the stand-in that vramcast has for apex{gone}")
