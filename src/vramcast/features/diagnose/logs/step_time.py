"""The time of a step, by every way the log gives it, and how regular the steps are."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.collect import Collected, Event
from vramcast.features.diagnose.logs.readers import lightning_profile, profiler_trace
from vramcast.features.diagnose.logs.result import Estimate, Irregular, Setup
from vramcast.features.diagnose.logs.series import Point, Series, spread

_WARM_UP_FACTOR = 1.5
_MOST_WARM_UP = 0.1
_ENOUGH_TICKS = 20
_ELAPSED_FROM = 8
_WINDOWS = 10
_SLOW_FACTOR = 1.5
_DRIFT = 1.1
_NEAR_LINES = 5


def estimates(collected: Collected, setup: Setup) -> list[Estimate]:
    """The most direct one first."""
    return [estimate for estimate in _estimates(collected, setup) if estimate.seconds > 0]


def _estimates(collected: Collected, setup: Setup) -> Iterator[Estimate]:
    series, track = collected.series, collected.main_track
    smoothed = collected.formats.get("progress bars", 0) > 0
    logged = track.logged if track is not None and track.logged.count else None
    clock = _by_clock(collected)
    if q.STEP_SECONDS in series:
        how = "of the profiler's steps" if profiler_trace.NAME in collected.formats else "as logged"
        yield _estimate(series[q.STEP_SECONDS], how)
    if lightning_profile.TRAINING_BATCH in series:
        parts = [
            series.get(key) for key in (lightning_profile.TRAINING_BATCH, q.phase_key(q.DATA), q.phase_key(q.TRANSFER))
        ]
        seconds = sum(part.median for part in parts if part is not None)
        yield Estimate(seconds=seconds, mean_seconds=seconds, how="of Lightning's profiler", count=1)
    if logged is not None and not smoothed:
        yield _estimate(logged, "as logged")
    if q.TIME in series and not is_elapsed(series[q.TIME]):
        yield _estimate(series[q.TIME], 'as logged under "time"')
    if clock is not None:
        yield clock
    if logged is not None and smoothed:
        yield _estimate(logged, "the bar's own smoothed rate")
    if q.STEPS_PER_SECOND in series:
        yield _rate(series[q.STEPS_PER_SECOND], 1.0, "from steps/s")
    yield from _by_throughput(collected, setup)
    if q.RUN_STEPS_PER_SECOND in series:
        yield _rate(series[q.RUN_STEPS_PER_SECOND], 1.0, "of the whole run, by its summary")


def _by_clock(collected: Collected) -> Estimate | None:
    track = collected.main_track
    if track is None or not track.clocked_steps:
        return None
    mean = track.clocked_seconds / track.clocked_steps
    if track.by_clock.count >= 3:
        estimate = _estimate(track.by_clock, "from the times of the lines")
        return Estimate(
            seconds=estimate.seconds,
            mean_seconds=mean,
            how=estimate.how,
            count=estimate.count,
            warm_up=estimate.warm_up,
        )
    if track.clocked_seconds < _ENOUGH_TICKS:
        return None
    return Estimate(seconds=mean, mean_seconds=mean, how="from the times of the lines", count=track.clocked_steps)


def _by_throughput(collected: Collected, setup: Setup) -> Iterator[Estimate]:
    samples = setup.counted_samples
    if samples is None:
        return
    whose = "all GPUs" if setup.throughput_of == "all" else "one GPU"
    if q.SAMPLES_PER_SECOND in collected.series:
        yield _rate(
            collected.series[q.SAMPLES_PER_SECOND],
            samples,
            f"from {samples:g} samples a step and the samples/s of {whose}",
        )
    if q.TOKENS_PER_SECOND in collected.series and setup.sequence is not None:
        tokens = samples * setup.sequence
        yield _rate(
            collected.series[q.TOKENS_PER_SECOND],
            tokens,
            f"from {tokens:,.0f} tokens a step and the tokens/s of {whose}",
        )
    if q.RUN_SAMPLES_PER_SECOND in collected.series and setup.samples_per_step is not None:
        yield _rate(
            collected.series[q.RUN_SAMPLES_PER_SECOND], setup.samples_per_step, "of the whole run, by its samples/s"
        )


def _estimate(series: Series, how: str) -> Estimate:
    values, warm_up = steady(series)
    return Estimate(seconds=median(values), mean_seconds=series.mean, how=how, count=series.count, warm_up=warm_up)


def _rate(series: Series, amount: float, how: str) -> Estimate:
    values = [value for value in series.values if value > 0]
    seconds = amount / median(values) if values else 0.0
    return Estimate(seconds=seconds, mean_seconds=seconds, how=how, count=series.count)


def steady(series: Series) -> tuple[Sequence[float], int]:
    """The series without the slow steps at the beginning, which load kernels, fill caches and compile."""
    values = series.values
    limit = _WARM_UP_FACTOR * series.median
    most = int(_MOST_WARM_UP * len(values)) if len(values) > 2 else 0
    warm_up = 0
    while warm_up < max(most, 1 if len(values) > 2 else 0) and values[warm_up] > limit:
        warm_up += 1
    return values[warm_up:], warm_up


def is_elapsed(series: Series) -> bool:
    """A series that only grows is time since the start, not of a step."""
    values = series.values
    if len(values) < _ELAPSED_FROM:
        return False
    grows = sum(later >= earlier for earlier, later in itertools.pairwise(values))
    return grows >= 0.95 * (len(values) - 1) and values[-1] > 3 * values[0]


# -- how regular they are --------------------------------------------------------------------------------------------


def irregularities(collected: Collected) -> list[Irregular]:
    track = collected.main_track
    candidates = [collected.series.get(q.STEP_SECONDS), collected.series.get(q.TIME)]
    if track is not None:
        # A bar smooths its rate, which hides slow steps and makes trends of nothing.
        own = [track.by_clock] if "progress bars" in collected.formats else [track.logged, track.by_clock]
        candidates = [*own, *candidates]
    series = next(
        (
            candidate
            for candidate in candidates
            if candidate is not None and candidate.count >= _ELAPSED_FROM and not is_elapsed(candidate)
        ),
        None,
    )
    made = []
    if series is not None:
        made += [irregular for irregular in (_slow_ones(collected, series), _drift(series)) if irregular is not None]
    evaluation = collected.series.get(q.EVALUATION_SECONDS)
    run = collected.series.get(q.RUN_SECONDS)
    if evaluation is not None:
        whole = run.total if run is not None else track.clocked_seconds if track is not None else 0.0
        share = min(1.0, evaluation.total / whole) if whole else 0.0
        text = f"{evaluation.count} evaluations take {evaluation.total:.1f} s"
        made.append(
            Irregular(kind="evaluation", text=text + (f", {share:.1%} of the run" if whole else ""), share=share)
        )
    return made


def _slow_ones(collected: Collected, series: Series) -> Irregular | None:
    values, warm_up = steady(series)
    middle = median(values)
    limit = max(_SLOW_FACTOR * middle, middle + 6 * spread(values))
    slow = [point for point in series.first[warm_up:] if point.value > limit]
    warm_line = series.first[warm_up - 1].line if warm_up else 0
    late = [point for point in series.largest if point.value > limit and point.line > warm_line]
    if not late or (not slow and len(late) < 2):
        return None
    cost = sum(value - middle for value in values if value > limit) / sum(values)
    worst = max(late)
    where = f"line {worst.line:,}" + (f", step {worst.step:,}" if worst.step >= 0 else "")
    longest = f"the longest {_seconds(worst.value)} at {where}{_beside(collected.events, worst)}"
    every = period(slow)
    if every is not None:
        usual = median(point.value for point in slow)
        text = f"every {every:,} steps one takes {_seconds(usual)} instead of {_seconds(middle)}; {longest}"
        return Irregular(kind="periodic", text=text, share=cost)
    n_slow = sum(value > limit for value in values)
    share = f"{n_slow} of {len(values):,}" if n_slow else "a few"
    return Irregular(
        kind="stalls",
        text=f"{share} take more than {_seconds(limit)} (usual {_seconds(middle)}); {longest}",
        share=cost,
    )


def period(slow: Sequence[Point]) -> int | None:
    """The distance in steps at which slow steps come back, if most do."""
    steps = [point.step for point in slow if point.step >= 0]
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps) if later > earlier]
    if len(gaps) < 3:
        return None
    every, _ = Counter(gaps).most_common(1)[0]
    regular = sum(gap % every == 0 for gap in gaps)
    return every if every > 1 and regular >= 0.8 * len(gaps) else None


def _beside(events: Sequence[Event], point: Point) -> str:
    near = [event for event in events if abs(event.line - point.line) <= _NEAR_LINES]
    return f", beside {near[0].kind} (line {near[0].line:,})" if near else ""


def _drift(series: Series) -> Irregular | None:
    values, _ = steady(series)
    if len(values) < 3 * _WINDOWS:
        return None
    size = len(values) // _WINDOWS
    windows = [median(values[i * size : (i + 1) * size]) for i in range(_WINDOWS)]
    first, last = median(windows[:2]), median(windows[-2:])
    rising = sum(later > earlier for earlier, later in itertools.pairwise(windows))
    if last < _DRIFT * first or rising < 6:
        return None
    text = (
        f"steps get slower: {_seconds(first)} at the beginning, {_seconds(last)} at the end ({last / first - 1:+.0%})"
    )
    return Irregular(kind="drift", text=text, share=1 - first * len(values) / sum(values))


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"
