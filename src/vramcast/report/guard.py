"""The result of a guard as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vramcast.features.guard.result import GuardResult, Tried
from vramcast.features.guard.wording import sentence
from vramcast.report.documents import prediction_document

GUARD_FORMAT = "vramcast-guard"
GUARD_VERSION = 1


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
        "tried": [_tried(attempt) for attempt in result.tried],
        "prediction": None if result.prediction is None else prediction_document(result.prediction),
    }


def _tried(attempt: Tried) -> dict[str, Any]:
    return {**asdict(attempt), "changes": dict(attempt.changes)}
