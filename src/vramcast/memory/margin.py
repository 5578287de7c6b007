"""How far runs lie from their predictions (errors.json), and so the margin to keep free and the interval of a figure.

Recorded runs fall into groups; a prediction has the margin of the widest group that it belongs to. `make accuracy`
writes errors.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from vramcast.trace import COMPUTED_VALUES, UNKNOWN_SIZE, Note, StepTrace

RECORDED = "recorded"
ASSUMED = "assumed"
OTHER_CARD = "other card"
OTHER_CARD_CONVOLUTIONS = "other card, convolutions"

ASSUMED_TOPICS = frozenset({
    "unknown value", UNKNOWN_SIZE, "--assume", COMPUTED_VALUES, "cudnn.benchmark", "streams", "Triton", "torch",
    "torch.compile", "DDP", "GradScaler", "packages",
})  # fmt: skip
"""Notes that say that something the memory may depend on was assumed. Recorded scripts have them too."""
CUDNN_NOT_ASKED = "convolutions"
"""The note of a run whose convolutions were predicted without the cuDNN that it will use."""
CONVOLUTION_HEAVY = 4
"""From so many modules on that run convolutions, cuDNN's choices count."""


@dataclass(frozen=True, slots=True)
class Margin:
    """95 of 100 recorded runs like this one were predicted with at most this error."""

    error: float
    """(predicted − measured) / measured, as docs/accuracy.md has it, without its sign."""
    runs: int
    of: str
    """Which runs these are, for a sentence: "steps recorded on an H200"."""

    @property
    def share(self) -> float:
        """To be kept free beside a prediction, as a share of it."""
        return 1 / (1 - self.error) - 1

    @property
    def percent(self) -> str:
        """Two digits: "0.17 %", "1.7 %", "12 %"."""
        return f"{100 * self.share:.2g} %"

    @property
    def sentence(self) -> str:
        return f"95 of 100 {self.of} took at most {self.percent} more than was predicted"

    def interval(self, size_bytes: int) -> tuple[int, int]:
        """Between which two sizes a run lies that is predicted to take `size_bytes`."""
        return math.floor(size_bytes / (1 + self.error)), self.upper(size_bytes)

    def upper(self, size_bytes: int) -> int:
        return math.ceil(size_bytes / (1 - self.error))

    def within(self, limit_bytes: int) -> int:
        """The largest prediction that still has its margin below the limit."""
        return math.floor(limit_bytes * (1 - self.error))


def margin_for(gpu_id: str, notes: Iterable[Note], *, many_convolutions: bool) -> Margin:
    """The margin of a prediction for this card that comes with these notes."""
    topics = {note.topic for note in notes}
    names = [RECORDED]
    if topics & ASSUMED_TOPICS:
        names.append(ASSUMED)
    if gpu_id not in _data()["gpus"]:
        names.append(OTHER_CARD_CONVOLUTIONS if many_convolutions else OTHER_CARD)
    elif CUDNN_NOT_ASKED in topics and many_convolutions:
        names.append(OTHER_CARD_CONVOLUTIONS)
    return max((margin_of(name) for name in names), key=lambda margin: margin.error)


def margin_of(name: str) -> Margin:
    group = _data()["groups"][name]
    return Margin(error=float(group["within"]["0.95"]), runs=int(group["runs"]), of=str(group["of"]))


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(files("vramcast.memory").joinpath("errors.json").read_text(encoding="utf-8"))
    return data


def has_many_convolutions(trace: StepTrace) -> bool:
    """Whether what cuDNN chooses decides much of the memory."""
    numbers = {
        number
        for number, op in enumerate(trace.ops)
        if ("convolution" in op or "cudnn" in op) and "attention" not in op  # whose workspace follows from its shapes
    }
    if not numbers:
        return False
    modules = {module for op, module in zip(trace.op, trace.module, strict=True) if op in numbers}
    return len(modules) >= CONVOLUTION_HEAVY
