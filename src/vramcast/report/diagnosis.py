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


def diagnosis_page(found: Diagnosis) -> Page:
    page: list[Line | Grid] = [
        Line(found.bottleneck, "bad" if found.bottleneck_kind in ("unknown", "contradiction") else "good")
    ]
    page += [Line(text) for text in _about_step(found)]
    if any(part.seconds is not None for part in found.parts):
        page.append(_parts(found))
    page += _changes(found)
    page += [Line(f"will not help: {one.change}: {one.why}") for one in found.will_not_help]
    page += [Line(f"{one.kind}: {one.text}") for one in found.irregular]
    page += [Line(f"note: {text}") for text in found.notes]
    if found.missing and found.predicted is None:
        page.append(Line(_unpredicted(found), "aside"))
    page.append(Line(_footer(found), "aside"))
    return page


def _about_step(found: Diagnosis) -> Iterator[str]:
    step = found.step
    if step is not None:
        yield f"step {seconds(step.seconds)} ({step.how}){_warm_up(step)}{_rates(found)}"
        for other in found.other_estimates:
            if abs(other.seconds - step.seconds) > _DISAGREES * step.seconds:
                yield f"but {seconds(other.seconds)} {other.how}: {_why_other(other, step)}"
    elif found.samples_per_second is not None:
        yield f"{found.samples_per_second:,.3g} samples/s"
    if found.total_steps is not None and found.last_step is not None:
        times = ""
        if found.total_seconds is not None and found.left_seconds is not None:
            times = f": {duration(found.left_seconds)} left of {duration(found.total_seconds)}"
        yield f"at step {found.last_step:,} of {found.total_steps:,}{times}"
    memory = [f"memory in the log {format_size(found.memory_bytes)}"] if found.memory_bytes is not None else []
    if found.job is not None:
        fits = "fits" if found.job.fits else "does not fit"
        memory.append(
            f"predicted for {found.job.name}: {format_gib(found.job.reserved_bytes)} reserved, "
            f"{format_gib(found.job.device_bytes)} on the device, {fits} {found.job.gpu} "
            f"({format_gib(found.job.limit_bytes)})"
        )
    if found.mfu is not None:
        memory.append(f"MFU {found.mfu:.1%}")
    if memory:
        yield "; ".join(memory)


def _rates(found: Diagnosis) -> str:
    text = f"; {found.samples_per_second:,.3g} samples/s" if found.samples_per_second is not None else ""
    if found.tokens_per_second is not None:
        text += f"; {found.tokens_per_second:,.0f} tokens/s"
    setup = found.setup
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


def _parts(found: Diagnosis) -> Grid:
    whole = found.step.seconds if found.step is not None else 0.0
    rows = [row for part in found.parts for row in _rows(part, whole, 0)]
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


def _changes(found: Diagnosis) -> list[Line | Grid]:
    rows = found.what_ifs or found.helps
    if not rows:
        return []
    now = WhatIf(
        change="as it is",
        source=MEASURED,
        step_seconds=found.step.seconds if found.step is not None else None,
        samples_per_second=found.samples_per_second,
        epoch_seconds=found.epoch_seconds,
        total_seconds=found.total_seconds,
        device_bytes=found.job.device_bytes if found.job is not None else None,
        fits=found.job.fits if found.job is not None else None,
    )
    page: list[Line | Grid] = [what_if_grid("would help", (now, *rows))]
    page += [Line(f"{row.change}: {row.why}", "aside") for row in rows if row.why]
    return page


def _unpredicted(found: Diagnosis) -> str:
    names = ", ".join(found.missing)
    if found.job is not None:
        return f"not in the log: {names}; their time is not predicted either, so how it divides among them is not known"
    return f"not in the log: {names}; log them, or add a torch.profiler trace of a few steps"


def _footer(found: Diagnosis) -> str:
    formats = ", ".join(f"{name} ({count:,})" for name, count in found.formats.items())
    lines = f"; {found.lines:,} line{'' if found.lines == 1 else 's'}" if found.lines else ""
    return f"{', '.join(found.logs)}{lines}; read as {formats}"


def diagnosis_document(found: Diagnosis) -> dict[str, Any]:
    return {
        "format": DIAGNOSIS_FORMAT,
        "version": DIAGNOSIS_VERSION,
        "logs": list(found.logs),
        "formats": dict(found.formats),
        "lines": found.lines,
        "lines_parsed": found.lines_parsed,
        "bottleneck": found.bottleneck,
        "bottleneck_kind": found.bottleneck_kind,
        "step_seconds": None if found.step is None else found.step.seconds,
        "estimates": [asdict(one) for one in ((found.step, *found.other_estimates) if found.step else ())],
        "setup": {**asdict(found.setup), "samples_per_step": found.setup.samples_per_step},
        "samples_per_second": found.samples_per_second,
        "tokens_per_second": found.tokens_per_second,
        "last_step": found.last_step,
        "total_steps": found.total_steps,
        "left_seconds": found.left_seconds,
        "total_seconds": found.total_seconds,
        "epoch_seconds": found.epoch_seconds,
        "parts": [asdict(part) for part in found.parts],
        "missing": list(found.missing),
        "helps": [what_if_document(row) for row in found.helps],
        "will_not_help": [what_if_document(row) for row in found.will_not_help],
        "what_ifs": [what_if_document(row) for row in found.what_ifs],
        "irregular": [asdict(one) for one in found.irregular],
        "memory_bytes": found.memory_bytes,
        "mfu": found.mfu,
        "job": None if found.job is None else asdict(found.job),
        "predicted": None if found.predicted is None else asdict(found.predicted),
        "notes": list(found.notes),
    }
