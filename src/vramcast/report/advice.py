"""Advice as text and as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from typing import Any

from vramcast.base.units import GIB, format_gib
from vramcast.features.advise.result import Advice, ConfigText, LargestSize, Suggestion
from vramcast.report.page import Grid, Line, Page
from vramcast.report.time import source
from vramcast.report.wording import host_lines, margin, rate, seconds, verdict, with_article, with_margin

ADVICE_FORMAT = "vramcast-advice"
ADVICE_VERSION = 1
_BESIDE = {
    "diff": "not in the file, but in the shell or the training script:",
    "flags": "not by a flag, but in the shell or the training script:",
    "command": "or the fields of the job:",
}


def advice_page(advice: Advice) -> Page:
    page: list[Line | Grid] = [Line(verdict(advice.asked), "good" if advice.asked.fits else "bad")]
    if advice.best:
        page += _fitting(advice)
    else:
        page += _nothing(advice)
    page += [Line(line) for line in (*largest_lines(advice), *advice.next_questions)]
    page += [Line(f"cannot be done: {problem}", "aside") for problem in advice.refused]
    kept = f"; kept: {', '.join(advice.keep)}" if advice.keep else ""
    page.append(
        Line(
            f"{advice.job}; {advice.combinations:,} combinations, {advice.traces} runs traced; what is shown was "
            f"traced as it is{kept}",
            "aside",
        )
    )
    page.append(Line(_source(advice), "aside"))
    return page


def _source(advice: Advice) -> str:
    if advice.time is None:
        return "time beside the job as it is, by rule of thumb"
    shown = (*advice.best, *advice.front)
    rules = list(dict.fromkeys(text for suggestion in shown for text in suggestion.by_rule))
    return source(advice.time) + (f"; by rule of thumb: {', '.join(rules)}" if rules else "")


def _fitting(advice: Advice) -> list[Line | Grid]:
    page: list[Line | Grid] = [_grid("best", advice.best)]
    for i, suggestion in enumerate(advice.best, 1):
        page += [Line("")] if i > 1 else []
        page.append(Line(f"{i}. {suggestion.text}", "heading"))
        page += [Line(f"   {change.text}: {change.risk}; {change.cost}") for change in suggestion.changes]
        if not suggestion.comfortable:
            page.append(Line(f"   close: keeps less than the margin of {margin(suggestion.prediction)} free"))
        page += [Line(f"   {text}") for text in host_lines(suggestion.prediction.host)]
        if suggestion.prediction.retries:
            page.append(Line("   the allocator has to give memory back and try again, which takes time"))
        page += paste(suggestion.config) if suggestion.overrides else [Line("   nothing to change")]
    if len(advice.front) > 1:
        page.append(Line(""))
        page.append(Line("memory against time: none of these is beaten in both", "heading"))
        page.append(_grid("front", advice.front))
    return page


def largest_lines(advice: Advice) -> list[str]:
    """One line for each configuration."""
    by_configuration: dict[str, list[LargestSize]] = {}
    for size in advice.largest:
        by_configuration.setdefault(size.of, []).append(size)
    lines = []
    for of, sizes in by_configuration.items():
        text = ", ".join(_size(size) for size in sizes)
        lines.append(f"largest that fits{f' with {of}' if of else ', all else as it is'}: {text}")
    return lines


def _size(size: LargestSize) -> str:
    if not size.sizes:
        return f"no {size.axis} (the smallest needs {format_gib(size.device_bytes)})"
    text = " × ".join(f"{number:,}" for number in size.sizes.values())
    text = f"{size.axis} {text} ({format_gib(size.device_bytes)})"
    if size.accumulation is not None and size.accumulation > 1:
        text += f"; batch {size.kept_batch:,} × accumulation {size.accumulation:,} keeps the step as it is"
    return text


def _grid(name: str, suggestions: tuple[Suggestion, ...]) -> Grid:
    rows = tuple(
        (
            suggestion.text,
            f"{suggestion.prediction.device_bytes / GIB:.2f}",
            f"{suggestion.prediction.headroom_bytes / GIB:.2f}",
            f"{suggestion.batch:,} × {suggestion.accumulation:,}",
            *_pace(suggestion),
        )
        for suggestion in suggestions
    )
    is_timed = all(suggestion.step_seconds is not None for suggestion in suggestions)
    return Grid((name, "GiB", "left", "batch", *(("step", "samples/s") if is_timed else ("time",))), rows)


def _pace(suggestion: Suggestion) -> tuple[str, ...]:
    if suggestion.step_seconds is None or suggestion.samples_per_second is None:
        return (f"{suggestion.time_factor:.2f}",)
    return seconds(suggestion.step_seconds), rate(suggestion.samples_per_second)


def nothing_fits(advice: Advice) -> str:
    if advice.combinations == 1:
        return "There is nothing to change" + (": all that could be is kept" if advice.keep else " in this job")
    return "Nothing that can be changed makes it fit" + (" with what is kept" if advice.keep else "")


def _nothing(advice: Advice) -> list[Line | Grid]:
    page: list[Line | Grid] = [Line(nothing_fits(advice), "bad")]
    suggestion = advice.smallest
    if suggestion is None:
        return page
    need = suggestion.prediction.device_bytes
    page.append(
        Line(
            f"The least that was found is {format_gib(need)} ({suggestion.text}); {with_margin(suggestion.prediction)}"
        )
    )
    page.append(Line(f"Most of it is {advice.too_large}, of {format_gib(advice.asked.limit_bytes)} there is"))
    card = advice.smallest_card
    if card is None:
        page.append(Line("No known card holds it"))
    else:
        page.append(
            Line(f"The smallest known card that holds it is {with_article(card.gpu.short_name)}: --gpu {card.gpu.id}")
        )
    if suggestion.overrides:
        page += paste(suggestion.config)
    return page


def paste(config: ConfigText) -> list[Line]:
    """Text to be copied as it stands: the change in the user's own format, what that cannot express, and how to try
    both."""
    lines = [Line(line, "code") for line in config.text.splitlines()]
    if config.beside:
        lines.append(Line(f"   {_BESIDE[config.kind]}"))
        lines += [Line(line, "code") for line in config.beside]
    if config.beside and config.check and config.check != config.text:
        lines.append(Line("   predicted together by"))
        lines.append(Line(config.check, "code"))
    return lines


def advice_document(advice: Advice) -> dict[str, Any]:
    card = advice.smallest_card
    return {
        "format": ADVICE_FORMAT,
        "version": ADVICE_VERSION,
        "job": advice.job,
        "recognised_as": advice.recognised_as,
        "objective": advice.objective,
        "keep": list(advice.keep),
        "gpu": advice.asked.gpu.id,
        "limit_bytes": advice.asked.limit_bytes,
        "local": None if advice.local is None else asdict(advice.local),
        "fits": advice.fits,
        "asked": {
            "fits": advice.asked.fits,
            "device_bytes": advice.asked.device_bytes,
            "step_seconds": None if advice.time is None else advice.time.seconds,
        },
        "best": [suggestion_document(suggestion) for suggestion in advice.best],
        "front": [suggestion_document(suggestion) for suggestion in advice.front],
        "smallest": None if advice.smallest is None else suggestion_document(advice.smallest),
        "smallest_card": None if card is None else card.gpu.id,
        "largest": [_largest_document(size) for size in advice.largest],
        "too_large": advice.too_large,
        "calibrated": None if advice.time is None else advice.time.calibrated,
        "time_source": None if advice.time is None else advice.time.source,
        "combinations": advice.combinations,
        "traces": advice.traces,
        "refused": list(advice.refused),
        "next_questions": list(advice.next_questions),
    }


def _largest_document(size: LargestSize) -> dict[str, Any]:
    return asdict(dataclasses.replace(size, sizes=dict(size.sizes)))


def suggestion_document(suggestion: Suggestion) -> dict[str, Any]:
    prediction = suggestion.prediction
    return {
        "text": suggestion.text,
        "changes": [asdict(change) for change in suggestion.changes],
        "overrides": dict(suggestion.overrides),
        "fits": prediction.fits,
        "comfortable": suggestion.comfortable,
        "device_bytes": prediction.device_bytes,
        "with_margin_bytes": prediction.with_margin_bytes,
        "interval_bytes": list(prediction.interval),
        "peak_reserved_bytes": prediction.peak_reserved_bytes,
        "peak_allocated_bytes": prediction.peak_allocated_bytes,
        "headroom_bytes": prediction.headroom_bytes,
        "host_bytes": prediction.host_bytes,
        "retries": prediction.retries,
        "batch": suggestion.batch,
        "accumulation": suggestion.accumulation,
        "samples_per_step": suggestion.samples_per_step,
        "time_factor": round(suggestion.time_factor, 4),
        "step_seconds": suggestion.step_seconds,
        "samples_per_second": suggestion.samples_per_second,
        "by_rule": list(suggestion.by_rule),
        "config": asdict(suggestion.config),
        "options": suggestion.options,
    }
