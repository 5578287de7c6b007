"""What a guard says: the verdict in one sentence, and what does not fit."""

from __future__ import annotations

from vramcast.base import language
from vramcast.base.units import format_gib
from vramcast.features.guard.result import GuardResult
from vramcast.memory.account import largest

_PARTS_SHOWN = 5


def in_the_users_language(text: str) -> str:
    """A guard runs in the user's program, where no option names a language: that of the locale."""
    with language.spoken(language.usual_language()):
        return "\n".join(map(language.sentence, text.splitlines()))


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
        barely = ", but barely" if prediction.barely_fits else ""
        return f"vramcast: {result.name} fits{barely}: needs {needs} of {there}{applied}"
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
