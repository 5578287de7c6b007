"""What a guard predicted and what was measured, for experiment trackers: TensorBoard, Weights & Biases, others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.base.units import GIB
from vramcast.features.guard.result import GuardResult

PREFIX = "vramcast/"


def predicted(result: GuardResult) -> dict[str, float]:
    """In GiB and seconds; empty where nothing could be predicted."""
    prediction = result.prediction
    if prediction is None:
        return {}
    found = {
        "predicted_device_gib": prediction.device_bytes / GIB,
        "predicted_reserved_gib": prediction.peak_reserved_bytes / GIB,
        "predicted_allocated_gib": prediction.peak_allocated_bytes / GIB,
    }
    if result.room is not None:
        found["available_gib"] = result.room.available_bytes / GIB
    return {PREFIX + name: value for name, value in found.items()}


def measured() -> dict[str, float]:
    """The peaks of PyTorch's allocator so far; empty without a card."""
    import torch

    if not torch.cuda.is_available():
        return {}
    return {
        f"{PREFIX}measured_reserved_gib": torch.cuda.max_memory_reserved() / GIB,
        f"{PREFIX}measured_allocated_gib": torch.cuda.max_memory_allocated() / GIB,
    }


def log_to(tracker: Any, figures: Mapping[str, float], step: int = 0) -> None:
    """`tracker`: a SummaryWriter of TensorBoard, a run of Weights & Biases, a Trainer of Hugging Face, a logger of
    Lightning, or a function that takes the figures."""
    if not figures:
        return
    if hasattr(tracker, "add_scalar"):
        for name, value in figures.items():
            tracker.add_scalar(name, value, step)
    elif hasattr(tracker, "log"):  # a run, or a Trainer, which gives it to all its trackers
        # Not under a step of its own: a run refuses steps that it has passed.
        tracker.log(dict(figures))
    elif hasattr(tracker, "log_metrics"):
        tracker.log_metrics(dict(figures), step=step)
    elif callable(tracker):
        tracker(dict(figures))
    else:
        raise UsageError(
            f"guard: {type(tracker).__name__} is neither a SummaryWriter, a run of Weights & Biases nor a function"
        )
