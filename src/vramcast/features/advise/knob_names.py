"""The names of the knobs, as `--keep` calls them; apart from the knobs, so that help does not load them."""

from __future__ import annotations

KNOBS: tuple[str, ...] = (
    "batch",
    "checkpointing",
    "allocator",
    "gradients",
    "precision",
    "optimizer",
    "loss",
    "offload",
    "sequence",
    "resolution",
    "frames",
    "gpus",
    "freezing",
    "trained",
    "compile",
    "attention",
    "liger",
)
ON_REQUEST = ("compile", "attention", "liger")
"""Those that are only turned where that is asked for: their traces take long, or packages must be installed."""
SPEED = ("batch", "checkpointing", "precision", "optimizer", "compile", "attention", "liger")
"""Those that change how fast a step is; the others only save memory."""
