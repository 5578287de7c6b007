"""The verdict of `vramcast check` in a few lines, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vramcast.base.units import format_gib, format_size
from vramcast.features.check.verdict import Verdict
from vramcast.report.advice import suggestion_document
from vramcast.report.page import Line, Page
from vramcast.report.wording import fits, with_article, with_margin

CHECK_FORMAT = "vramcast-check"
CHECK_VERSION = 1


def check_page(verdict: Verdict) -> Page:
    what = f" ({verdict.recognised_as})" if verdict.recognised_as else ""
    page = [Line(text, tone) for text, tone in head_lines(verdict)]
    page.append(Line(verdict.pointer.text))
    page += [Line(f"card: {note.text}") for note in verdict.prediction.notes if note.topic == "card"]
    page.append(Line(f"{verdict.name}{what}; `vramcast predict` shows every byte", "aside"))
    return page


def head_lines(verdict: Verdict) -> list[tuple[str, str]]:
    """The answer, what is needed, and what is there; each with its tone."""
    needed, there = verdict.needed_bytes, verdict.available_bytes
    text = f"needs {format_gib(needed)}, {with_margin(verdict.prediction)}"
    if there < needed:
        text += f"; {format_gib(needed - there)} short"
    elif verdict.fits:
        text += f"; {format_gib(there - needed)} left"
    return [
        (sentence(verdict), "good" if verdict.fits else "bad"),
        (text, ""),
        (f"{format_gib(there)} {_where(verdict)}{_less(verdict)}", ""),
    ]


def sentence(verdict: Verdict) -> str:
    card = verdict.prediction.gpu.short_name
    place = f"what is free on {card} (device {verdict.local.index})" if verdict.local else with_article(card)
    if verdict.fits:
        return fits(verdict.prediction, place)
    if verdict.available_bytes >= verdict.needed_bytes:
        return f"Does not fit {place}: no free range is large enough"
    return f"Does not fit {place}"


def check_document(verdict: Verdict) -> dict[str, Any]:
    local = verdict.local
    return {
        "format": CHECK_FORMAT,
        "version": CHECK_VERSION,
        "verdict": sentence(verdict),
        "fits": verdict.fits,
        "name": verdict.name,
        "recognised_as": verdict.recognised_as,
        "gpu": verdict.prediction.gpu.id,
        "needed_bytes": verdict.needed_bytes,
        "with_margin_bytes": verdict.with_margin_bytes,
        "interval_bytes": list(verdict.prediction.interval),
        "available_bytes": verdict.available_bytes,
        "margin": verdict.margin,
        "headroom_bytes": verdict.available_bytes - verdict.needed_bytes,
        "at_least": verdict.prediction.at_least,
        "local": None if local is None else asdict(local),
        "pointer": asdict(verdict.pointer),
        "changes": [suggestion_document(one) for one in verdict.changes],
        "notes": [asdict(note) for note in verdict.prediction.notes],
    }


def _less(verdict: Verdict) -> str:
    return f", {verdict.margin:.0%} of it kept free" if verdict.margin else ""


def _where(verdict: Verdict) -> str:
    local = verdict.local
    if local is None:
        return "on the card"
    if not local.processes:
        return f"free of {format_gib(local.total_bytes)}, {format_size(local.used_bytes)} in use"
    largest = local.processes[0]
    used = "" if largest.used_bytes is None else f" {format_size(largest.used_bytes)}"
    more = f" and {len(local.processes) - 1} more" if len(local.processes) > 1 else ""
    return (
        f"free of {format_gib(local.total_bytes)}, {format_size(local.used_bytes)} in use:"
        f" {largest.name or 'process'} ({largest.pid}){used}{more}"
    )
