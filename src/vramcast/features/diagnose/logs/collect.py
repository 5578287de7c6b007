"""Everything a log says, gathered in constant memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.clocks import DAY_SECONDS
from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.series import Series

_MOST_TRACKS = 64
_MOST_STAGES = 256
_MOST_EVENTS = 2048
_TICKS = 20
"""A clock that ticks in seconds is read only over this many ticks, so that an interval is good to 5 %."""

SAVING, EVALUATION, PROBLEM = "saving", "evaluation", "problem"


@dataclass(slots=True)
class Track:
    """Lines that count the same steps."""

    by_clock: Series = field(default_factory=Series)
    """Seconds of a step from the times at which lines were written."""
    logged: Series = field(default_factory=Series)
    """Seconds of a step as the lines say them."""
    first_step: int | None = None
    last_step: int | None = None
    total_steps: int | None = None
    lines: int = 0
    clocked_seconds: float = 0.0
    clocked_steps: int = 0
    restarts: int = 0
    _mark: tuple[int, float] | None = None
    """Step and clock at which the interval began that is not closed yet."""
    _seen: tuple[int, float] | None = None

    def add(self, sample: Sample, step: int, line: int) -> None:
        self.lines += 1
        seconds = sample.values.get(q.STEP_SECONDS)
        if seconds:
            self.logged.add(seconds, line, step)
        if self.first_step is None:
            self.first_step = step
        if self.last_step is not None and step < self.last_step:
            self.restarts += 1
            self._mark = self._seen = None
        self.last_step = step
        self.total_steps = sample.total_steps or self.total_steps
        if sample.clock_seconds is not None:
            self._add_clock(step, sample.clock_seconds, sample.clock_resolution, line)

    def _add_clock(self, step: int, clock: float, resolution: float, line: int) -> None:
        if self._mark is None or self._seen is None:
            self._mark = self._seen = (step, clock)
            return
        if clock < self._seen[1] and self._mark[1] < DAY_SECONDS:
            # A clock without a date has passed midnight, or a restarted bar counts from zero: begin anew.
            self._mark = self._seen = (step, clock)
            return
        steps, seconds = step - self._seen[0], clock - self._seen[1]
        if steps <= 0 or seconds < 0:
            return
        self.clocked_seconds += seconds
        self.clocked_steps += steps
        self._seen = (step, clock)
        start_step, start = self._mark
        if clock - start >= _TICKS * resolution:
            self.by_clock.add((clock - start) / (step - start_step), line, step)
            self._mark = (step, clock)


@dataclass(slots=True)
class Event:
    kind: str
    line: int
    text: str


@dataclass(slots=True)
class Stage:
    """A timing under the name its author gave it."""

    seconds: Series = field(default_factory=Series)
    depth: int = 0


@dataclass(slots=True)
class Collected:
    logs: list[str] = field(default_factory=list)
    series: dict[str, Series] = field(default_factory=dict)
    """By quantity (sample.py)."""
    tracks: dict[str, Track] = field(default_factory=dict)
    stages: dict[str, Stage] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    event_counts: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    throughput_of: str = ""
    lines: int = 0
    lines_parsed: int = 0
    bytes_read: int = 0
    broken_lines: int = 0
    """With bytes that are not of the log's encoding."""

    def add(self, sample: Sample, line: int) -> None:
        for quantity, value in sample.values.items():
            if quantity in q.SETTINGS:
                self.settings[quantity] = value
                continue
            if quantity == q.STEP_SECONDS and sample.step is not None:
                continue
            series = self.series.get(quantity)
            if series is None:
                series = self.series[quantity] = Series()
            series.add(value, line, sample.step)
        self.throughput_of = sample.throughput_of or self.throughput_of
        if sample.step is not None:
            track = self.tracks.get(sample.track)
            if track is None:
                if len(self.tracks) >= _MOST_TRACKS:
                    return
                track = self.tracks[sample.track] = Track()
            track.add(sample, sample.step, line)
        if sample.stage:
            stage = self.stages.get(sample.stage)
            if stage is None:
                if len(self.stages) >= _MOST_STAGES:
                    return
                stage = self.stages[sample.stage] = Stage(depth=sample.stage_depth)
            stage.seconds.add(sample.stage_seconds, line)

    def add_event(self, kind: str, line: int, text: str) -> None:
        self.event_counts[kind] += 1
        if len(self.events) < _MOST_EVENTS:
            self.events.append(Event(kind, line, text[:200]))

    @property
    def main_track(self) -> Track | None:
        """The one that training is: most time, then most lines. Bars of evaluations are others."""
        return max(self.tracks.values(), key=lambda track: (track.clocked_seconds, track.lines), default=None)
