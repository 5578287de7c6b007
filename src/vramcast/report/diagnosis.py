"""A diagnosis as text and as JSON: the bottleneck first, then the step in parts, then what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from vramcast.base.units import format_gib, format_size
from vramcast.features.diagnose.logs.result import MEASURED, Diagnosis, Estimate, Part, WhatIf
from vramcast.report.page import Grid, Line, Page
from vramcast.report.what_if import what_if_document, what_if_grid
from vramcast.report.wording import duration, percent, seconds

DIAGNOSIS_FORMAT = "vramcast-diagnosis"
DIAGNOSIS_VERSION = 1
_MOST_CHILDREN = 8
_DISAGREES = 0.1


def diagnosis_page(diagnosis: Diagnosis) -> Page:
    page: list[Line | Grid] = [
        Line(diagnosis.bottleneck, "bad" if diagnosis.bottleneck_kind in ("unknown", "contradiction") else "good")
    ]
    page += [Line(text) for text in _about_step(diagnosis)]
    if any(part.seconds is not None for part in diagnosis.parts):
        page.append(_parts(diagnosis))
    page += _changes(diagnosis)
    page += [Line(f"will not help: {change.change}: {change.why}") for change in diagnosis.will_not_help]
    page += [Line(f"{irregular.kind}: {irregular.text}") for irregular in diagnosis.irregular]
    page += [Line(f"note: {text}") for text in diagnosis.notes]
    if diagnosis.missing and diagnosis.predicted is None:
        page.append(Line(_unpredicted(diagnosis), "aside"))
    page.append(Line(_footer(diagnosis), "aside"))
    return page


def _about_step(diagnosis: Diagnosis) -> Iterator[str]:
    step = diagnosis.step
    if step is not None:
        yield f"step {seconds(step.seconds)} ({step.how}){_warm_up(step)}{_rates(diagnosis)}"
        for other in diagnosis.other_estimates:
            if abs(other.seconds - step.seconds) > _DISAGREES * step.seconds:
                yield f"but {seconds(other.seconds)} {other.how}: {_why_other(other, step)}"
    elif diagnosis.samples_per_second is not None:
        yield f"{diagnosis.samples_per_second:,.3g} samples/s"
    if diagnosis.total_steps is not None and diagnosis.last_step is not None:
        times = ""
        if diagnosis.total_seconds is not None and diagnosis.left_seconds is not None:
            times = f": {duration(diagnosis.left_seconds)} left of {duration(diagnosis.total_seconds)}"
        yield f"at step {diagnosis.last_step:,} of {diagnosis.total_steps:,}{times}"
    memory = [f"memory in the log {format_size(diagnosis.memory_bytes)}"] if diagnosis.memory_bytes is not None else []
    if diagnosis.job is not None:
        fits = "fits" if diagnosis.job.fits else "does not fit"
        memory.append(
            f"predicted for {diagnosis.job.name}: {format_gib(diagnosis.job.reserved_bytes)} reserved, "
            f"{format_gib(diagnosis.job.device_bytes)} on the device, {fits} {diagnosis.job.gpu} "
            f"({format_gib(diagnosis.job.limit_bytes)})"
        )
    if diagnosis.mfu is not None:
        memory.append(f"MFU {diagnosis.mfu:.1%}")
    if memory:
        yield "; ".join(memory)


def _rates(diagnosis: Diagnosis) -> str:
    text = f"; {diagnosis.samples_per_second:,.3g} samples/s" if diagnosis.samples_per_second is not None else ""
    if diagnosis.tokens_per_second is not None:
        text += f"; {diagnosis.tokens_per_second:,.0f} tokens/s"
    setup = diagnosis.setup
    if setup.batch is not None:
        parts = [f"batch {setup.batch:,}", f"{setup.gpus or 1} GPU{'s' if (setup.gpus or 1) > 1 else ''}"]
        parts += [f"accumulation {setup.accumulation}"] if (setup.accumulation or 1) > 1 else []
        text += f" with {' × '.join(parts)}"
    return text


def _warm_up(step: Estimate) -> str:
    if step.warm_up:
        return f", without the first {step.warm_up} of {step.count:,}"
    return f", median of {step.count:,}" if step.count > 1 else ""


def _why_other(other: Estimate, step: Estimate) -> str:
    if other.seconds > step.seconds:
        return "what lies between the steps (saving, evaluation, logging) counts there"
    return "the two do not count the same"


def _parts(diagnosis: Diagnosis) -> Grid:
    whole = diagnosis.step.seconds if diagnosis.step is not None else 0.0
    rows = [row for part in diagnosis.parts for row in _rows(part, whole, 0)]
    total = ("step", seconds(whole), "", "") if whole else None
    return Grid(("of a step", "time", "share", "source"), tuple(rows), total=total)


def _rows(part: Part, whole: float, depth: int) -> Iterator[tuple[str, ...]]:
    name = part.name
    if part.covers:
        name = f"not recorded: {name}"
    elif not depth and part.phase is not None and part.phase not in name.lower():
        name = f"{name} ({part.phase})"
    time = "–" if part.seconds is None else seconds(part.seconds)
    share = "–" if part.seconds is None else percent(part.seconds, whole)
    yield "  " * depth + name, time, share, part.source
    for child in part.children[:_MOST_CHILDREN]:
        yield from _rows(child, whole, depth + 1)


def _changes(diagnosis: Diagnosis) -> list[Line | Grid]:
    rows = diagnosis.what_ifs or diagnosis.helps
    if not rows:
        return []
    now = WhatIf(
        change="as it is",
        source=MEASURED,
        step_seconds=diagnosis.step.seconds if diagnosis.step is not None else None,
        samples_per_second=diagnosis.samples_per_second,
        epoch_seconds=diagnosis.epoch_seconds,
        total_seconds=diagnosis.total_seconds,
        device_bytes=diagnosis.job.device_bytes if diagnosis.job is not None else None,
        fits=diagnosis.job.fits if diagnosis.job is not None else None,
    )
    page: list[Line | Grid] = [what_if_grid("would help", (now, *rows))]
    page += [Line(f"{row.change}: {row.why}", "aside") for row in rows if row.why]
    return page


def _unpredicted(diagnosis: Diagnosis) -> str:
    names = ", ".join(diagnosis.missing)
    if diagnosis.job is not None:
        return f"not in the log: {names}; their time is not predicted either, so how it divides among them is not known"
    return f"not in the log: {names}; log them, or add a torch.profiler trace of a few steps"


def _footer(diagnosis: Diagnosis) -> str:
    formats = ", ".join(f"{name} ({count:,})" for name, count in diagnosis.formats.items())
    lines = f"; {diagnosis.lines:,} line{'' if diagnosis.lines == 1 else 's'}" if diagnosis.lines else ""
    return f"{', '.join(diagnosis.logs)}{lines}; read as {formats}"


def diagnosis_document(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "format": DIAGNOSIS_FORMAT,
        "version": DIAGNOSIS_VERSION,
        "logs": list(diagnosis.logs),
        "formats": dict(diagnosis.formats),
        "lines": diagnosis.lines,
        "lines_parsed": diagnosis.lines_parsed,
        "bottleneck": diagnosis.bottleneck,
        "bottleneck_kind": diagnosis.bottleneck_kind,
        "step_seconds": None if diagnosis.step is None else diagnosis.step.seconds,
        "estimates": [
            asdict(estimate) for estimate in ((diagnosis.step, *diagnosis.other_estimates) if diagnosis.step else ())
        ],
        "setup": {**asdict(diagnosis.setup), "samples_per_step": diagnosis.setup.samples_per_step},
        "samples_per_second": diagnosis.samples_per_second,
        "tokens_per_second": diagnosis.tokens_per_second,
        "last_step": diagnosis.last_step,
        "total_steps": diagnosis.total_steps,
        "left_seconds": diagnosis.left_seconds,
        "total_seconds": diagnosis.total_seconds,
        "epoch_seconds": diagnosis.epoch_seconds,
        "parts": [asdict(part) for part in diagnosis.parts],
        "missing": list(diagnosis.missing),
        "helps": [what_if_document(row) for row in diagnosis.helps],
        "will_not_help": [what_if_document(row) for row in diagnosis.will_not_help],
        "what_ifs": [what_if_document(row) for row in diagnosis.what_ifs],
        "irregular": [asdict(irregular) for irregular in diagnosis.irregular],
        "memory_bytes": diagnosis.memory_bytes,
        "mfu": diagnosis.mfu,
        "job": None if diagnosis.job is None else asdict(diagnosis.job),
        "predicted": None if diagnosis.predicted is None else asdict(diagnosis.predicted),
        "notes": list(diagnosis.notes),
    }
