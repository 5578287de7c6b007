"""What a guard says when it does not fit, and its result as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vramcast.memory.account import largest
from vramcast.memory.guarded import GuardResult, Tried
from vramcast.report.documents import prediction_document
from vramcast.units import format_gib

GUARD_FORMAT = "vramcast-guard"
GUARD_VERSION = 1
_PARTS_SHOWN = 5


def sentence(result: GuardResult) -> str:
    """The verdict."""
    prediction, room, available = result.prediction, result.room, result.available_bytes
    if prediction is None or room is None or available is None:
        return f"vramcast: {result.name} was not predicted: {result.reason}"
    needs = format_gib(prediction.device_bytes)
    less = f" less a margin of {result.margin:.0%}" if result.margin else ""
    there = f"{format_gib(available)} {room.where}{less}"
    applied = f", with {result.fallback.name}" if result.fallback is not None else ""
    if result.fits:
        return f"vramcast: {result.name} fits: needs {needs} of {there}{applied}"
    at_least = "at least " if prediction.at_least else ""
    tail = "" if prediction.device_bytes > available else ": no free range is large enough"
    return f"vramcast: {result.name} does not fit: needs {at_least}{needs}, {there}{tail}"


def overflow_text(result: GuardResult) -> str:
    """The verdict, the largest parts of the account, and what was tried."""
    lines = [sentence(result)]
    prediction = result.prediction
    if prediction is not None:
        parts = largest(prediction.account.parts)[:_PARTS_SHOWN]
        lines.append("  " + ", ".join(f"{part.name} {format_gib(part.size_bytes)}" for part in parts))
    for tried in result.tried:
        outcome = tried.reason or f"needs {format_gib(tried.device_bytes or 0)}"
        lines.append(f"  tried {tried.name}: {outcome}")
    return "\n".join(lines)


def guard_document(result: GuardResult) -> dict[str, Any]:
    return {
        "format": GUARD_FORMAT,
        "version": GUARD_VERSION,
        "verdict": sentence(result),
        "name": result.name,
        "fits": result.fits,
        "reason": result.reason,
        "free_bytes": result.free_bytes,
        "available_bytes": result.available_bytes,
        "margin": result.margin,
        "gpu": None if result.room is None else result.room.gpu.id,
        "fallback": None if result.fallback is None else _tried(result.fallback),
        "tried": [_tried(one) for one in result.tried],
        "prediction": None if result.prediction is None else prediction_document(result.prediction),
    }


def _tried(one: Tried) -> dict[str, Any]:
    return {**asdict(one), "changes": dict(one.changes)}
