"""What-ifs as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vramcast.base.units import GIB
from vramcast.features.what_if.result import Outcome, WhatIfs
from vramcast.report.advice import paste
from vramcast.report.documents import time_document
from vramcast.report.page import Grid, Line, Page
from vramcast.report.time import headline
from vramcast.report.wording import duration, seconds, verdict
from vramcast.report.wording import rate as samples_rate

WHAT_IF_FORMAT = "vramcast-what-if"
WHAT_IF_VERSION = 1


def what_if_page(found: WhatIfs) -> Page:
    asked = found.asked
    page: list[Line | Grid] = [Line(verdict(asked.prediction), "good" if asked.prediction.fits else "bad")]
    if asked.time is not None:
        page.append(Line(headline(asked.time, asked.throughput)))
    page.append(_grid(found))
    costs = {text: cost for one in found.outcomes for text, cost in zip(one.changes, one.costs, strict=True)}
    page += [Line(f"{text}: {cost}") for text, cost in costs.items()]
    if found.best is not None:
        page += [Line(f"{found.outcomes[0].text}:"), *paste(found.best)]
    page += [Line(f"cannot be done: {problem}", "aside") for problem in found.refused]
    page.append(Line(f"{found.job}; every line was traced as it is", "aside"))
    return page


def _grid(found: WhatIfs) -> Grid:
    outcomes = (found.asked, *found.outcomes)
    has_epochs = found.asked.throughput is not None and found.asked.throughput.epoch_seconds is not None
    epochs = ("epoch", "in all") if has_epochs else ()
    rows = tuple(_row(one, found.asked, has_epochs) for one in outcomes)
    return Grid(("what if", "GiB", "step", "samples/s", "gain", *epochs), rows)


def _row(one: Outcome, asked: Outcome, has_epochs: bool) -> tuple[str, ...]:
    rate, before = one.samples_per_second, asked.samples_per_second
    gain = "–" if one is asked or not rate or not before else f"{rate / before - 1:+.0%}"
    cells = [
        one.text,
        f"{one.prediction.device_bytes / GIB:.2f}" + ("" if one.prediction.fits else " (does not fit)"),
        "–" if one.time is None else seconds(one.time.seconds),
        "–" if not rate else samples_rate(rate),
        gain,
    ]
    if has_epochs:
        durations = one.throughput and (one.throughput.epoch_seconds, one.throughput.total_seconds)
        cells += ["–" if value is None else duration(value) for value in durations or (None, None)]
    return tuple(cells)


def what_if_document(found: WhatIfs) -> dict[str, Any]:
    return {
        "format": WHAT_IF_FORMAT,
        "version": WHAT_IF_VERSION,
        "job": found.job,
        "recognised_as": found.recognised_as,
        "gpu": found.asked.prediction.gpu.id,
        "limit_bytes": found.asked.prediction.limit_bytes,
        "asked": _outcome(found.asked),
        "outcomes": [_outcome(one) for one in found.outcomes],
        "best": None if found.best is None else asdict(found.best),
        "refused": list(found.refused),
    }


def _outcome(one: Outcome) -> dict[str, Any]:
    time = None if one.time is None else time_document(one.time, one.throughput)
    if time is not None:
        del time["modules"]
    return {
        "changes": list(one.changes),
        "costs": list(one.costs),
        "overrides": dict(one.overrides),
        "fits": one.prediction.fits,
        "device_bytes": one.prediction.device_bytes,
        "headroom_bytes": one.prediction.headroom_bytes,
        "time": time,
    }
