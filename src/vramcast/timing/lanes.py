"""The time of a step as lanes for a picture: its phases, what the host issues, what the card runs.

A step has thousands of ops. Neighbours of one phase and one module become one bar; modules are taken as deep as the
picture has room for bars.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vramcast.timing.results import StepRows

MOST_BARS = 1500
_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Bar:
    begin_seconds: float
    end_seconds: float
    busy_seconds: float
    """Without the gaps between its ops."""
    label: str
    """The module, or an op where there is one and it belongs to none."""
    ops: int


@dataclass(frozen=True, slots=True)
class Lanes:
    phases: tuple[Bar, ...]
    host: tuple[Bar, ...]
    card: tuple[Bar, ...]
    before_seconds: float = 0.0
    """How long the card still works on the step before, which the host has left behind."""


def lanes(rows: StepRows, most_bars: int = MOST_BARS) -> Lanes:
    timeline = rows.timeline
    phases = tuple(Bar(begin, end, end - begin, name, 1) for name, begin, end in rows.phases)
    # The first row of the timeline is the wait for data.
    host = list(zip(rows.names, rows.modules, timeline.issue_start[1:], timeline.issue_end[1:], strict=True))
    spans = zip(rows.names, rows.modules, timeline.start[1:], timeline.end[1:], strict=True)
    card = [span for span, kernels in zip(spans, rows.kernels, strict=True) if kernels]
    ends = [end for _, _, end in rows.phases]
    before = max(0.0, timeline.start[0]) if timeline.start else 0.0
    return Lanes(phases, _bars(host, ends, most_bars), _bars(card, ends, most_bars), before)


_Span = tuple[str, str, float, float]


def _bars(spans: Sequence[_Span], phase_ends: Sequence[float], most: int) -> tuple[Bar, ...]:
    spans = [span for span in spans if span[3] > span[2]]
    for depth in range(_DEEPEST, -1, -1):
        bars = list(_merged(spans, phase_ends, depth))
        if len(bars) <= most:
            break
    return tuple(bars)


def _merged(spans: Sequence[_Span], phase_ends: Sequence[float], depth: int) -> Iterator[Bar]:
    bar: Bar | None = None
    phase = 0
    for op, module, begin, end in spans:
        label = ".".join(module.split(".")[:depth]) if module else op if depth == _DEEPEST else ""
        while phase < len(phase_ends) and begin >= phase_ends[phase]:
            phase += 1
            if bar is not None:
                yield bar
                bar = None
        if bar is not None and bar.label == label:
            bar = Bar(bar.begin_seconds, end, bar.busy_seconds + end - begin, label, bar.ops + 1)
            continue
        if bar is not None:
            yield bar
        bar = Bar(begin, end, end - begin, label, 1)
    if bar is not None:
        yield bar
