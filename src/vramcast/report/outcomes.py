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


def what_if_page(what_ifs: WhatIfs) -> Page:
    asked = what_ifs.asked
    page: list[Line | Grid] = [Line(verdict(asked.prediction), "good" if asked.prediction.fits else "bad")]
    if asked.time is not None:
        page.append(Line(headline(asked.time, asked.throughput)))
    page.append(_grid(what_ifs))
    costs = {
        text: cost for outcome in what_ifs.outcomes for text, cost in zip(outcome.changes, outcome.costs, strict=True)
    }
    page += [Line(f"{text}: {cost}") for text, cost in costs.items()]
    if what_ifs.best is not None:
        page += [Line(f"{what_ifs.outcomes[0].text}:"), *paste(what_ifs.best)]
    page += [Line(f"cannot be done: {problem}", "aside") for problem in what_ifs.refused]
    page.append(Line(f"{what_ifs.job}; every line was traced as it is", "aside"))
    return page


def _grid(what_ifs: WhatIfs) -> Grid:
    outcomes = (what_ifs.asked, *what_ifs.outcomes)
    has_epochs = what_ifs.asked.throughput is not None and what_ifs.asked.throughput.epoch_seconds is not None
    epochs = ("epoch", "in all") if has_epochs else ()
    rows = tuple(_row(outcome, what_ifs.asked, has_epochs) for outcome in outcomes)
    return Grid(("what if", "GiB", "step", "samples/s", "gain", *epochs), rows)


def _row(outcome: Outcome, asked: Outcome, has_epochs: bool) -> tuple[str, ...]:
    rate, before = outcome.samples_per_second, asked.samples_per_second
    gain = "–" if outcome is asked or not rate or not before else f"{rate / before - 1:+.0%}"
    cells = [
        outcome.text,
        f"{outcome.prediction.device_bytes / GIB:.2f}" + ("" if outcome.prediction.fits else " (does not fit)"),
        "–" if outcome.time is None else seconds(outcome.time.seconds),
        "–" if not rate else samples_rate(rate),
        gain,
    ]
    if has_epochs:
        durations = outcome.throughput and (outcome.throughput.epoch_seconds, outcome.throughput.total_seconds)
        cells += ["–" if value is None else duration(value) for value in durations or (None, None)]
    return tuple(cells)


def what_if_document(what_ifs: WhatIfs) -> dict[str, Any]:
    return {
        "format": WHAT_IF_FORMAT,
        "version": WHAT_IF_VERSION,
        "job": what_ifs.job,
        "recognised_as": what_ifs.recognised_as,
        "gpu": what_ifs.asked.prediction.gpu.id,
        "limit_bytes": what_ifs.asked.prediction.limit_bytes,
        "asked": _outcome(what_ifs.asked),
        "outcomes": [_outcome(outcome) for outcome in what_ifs.outcomes],
        "best": None if what_ifs.best is None else asdict(what_ifs.best),
        "refused": list(what_ifs.refused),
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    time = None if outcome.time is None else time_document(outcome.time, outcome.throughput)
    if time is not None:
        del time["modules"]
    return {
        "changes": list(outcome.changes),
        "costs": list(outcome.costs),
        "overrides": dict(outcome.overrides),
        "fits": outcome.prediction.fits,
        "device_bytes": outcome.prediction.device_bytes,
        "headroom_bytes": outcome.prediction.headroom_bytes,
        "time": time,
    }
