"""What a step takes when nothing else on the computer slows its host down.

Where several guests share a computer, a neighbour's work on the other half of a core makes this one's take up to twice
as long, for seconds at a time, and no counter shows it. A loop in pure Python does. It is timed on every processor, the
program's two busy threads (Python's and autograd's) are put onto the fastest, and it is timed there again after the
step. What the step takes against what the loop took, over many steps, says what it takes at the loop's fastest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

from vramcast.measure.phases import BACKWARD

_LOOPS = 8_000
_AUTOGRAD = "pt_autograd"
_ENOUGH, _FEWEST = 24, 8
_SAME = 1.03
"""Steps that differ by less than this do not feel the host: a few of them are enough."""


def watched_steps(measure_step: Callable[[], dict[str, Any]], *, seconds: float = 4.0) -> dict[str, Any]:
    """Steps on the fastest processors of the moment, each with what the loop took on both before and after it:
    `loops` holds Python's before, autograd's before, Python's after, autograd's after."""
    steps: list[dict[str, Any]] = []
    fastest = min(_survey().values())
    deadline = perf_counter() + seconds
    while len(steps) < _ENOUGH and (len(steps) < _FEWEST or (perf_counter() < deadline and not _alike(steps))):
        before = _survey()
        python, autograd = (sorted(before, key=before.__getitem__) * 2)[:2]
        with _placed(python, autograd):
            step = measure_step()
        after = _survey()
        loops = [before[python], before[autograd], after[python], after[autograd]]
        fastest = min(fastest, *before.values(), *after.values())
        steps.append({**step, "loops": loops})
    return {"loop_seconds": fastest, "autograd_threads": len(_autograd_threads()), "steps": steps}


def undisturbed(watched: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
    """Seconds of the step and of each phase with the loop at its fastest, on a line through their logarithms."""
    steps, fastest = watched["steps"], watched["loop_seconds"]

    def slowdowns(places: Sequence[int]) -> list[float]:
        return [fmean(log(step["loops"][place] / fastest) for place in places) for step in steps]

    phases = {}
    for name in dict.fromkeys(name for step in steps for name in step["phase_seconds"]):
        felt = slowdowns((1, 3) if name == BACKWARD else (0, 2))
        phases[name] = _at_zero(felt, [step["phase_seconds"].get(name, 0.0) for step in steps])
    return _at_zero(slowdowns((0, 1, 2, 3)), [step["device_seconds"] for step in steps]), phases


def _at_zero(slowdowns: Sequence[float], seconds: Sequence[float]) -> float:
    """The line is the one whose slope is the middle of those between any two steps: single odd steps do not turn it."""
    if min(seconds) <= 0:
        return median(seconds)
    points = [(x, log(y)) for x, y in zip(slowdowns, seconds, strict=True)]
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 != x2]
    # A step is slowed down by no more than its host is, and not sped up.
    slope = min(1.0, max(0.0, median(slopes))) if slopes else 0.0
    return exp(median(y - slope * x for x, y in points))


def _alike(steps: Sequence[Mapping[str, Any]]) -> bool:
    seconds = [step["device_seconds"] for step in steps]
    return bool(max(seconds) <= _SAME * min(seconds))


def _survey() -> dict[int, float]:
    """What the loop takes on each processor that this thread may use, one after the other."""
    allowed = os.sched_getaffinity(0)
    found = {}
    try:
        for processor in sorted(allowed):
            os.sched_setaffinity(0, {processor})
            found[processor] = min(_loop(), _loop())
    finally:
        os.sched_setaffinity(0, allowed)
    return found


def _loop() -> float:
    started, total = perf_counter(), 0
    for number in range(_LOOPS):
        total += number
    return perf_counter() - started


def _autograd_threads() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text().startswith(_AUTOGRAD):
                found.append(int(task.name))
        except OSError:  # it ended meanwhile
            continue
    return found


@contextmanager
def _placed(python: int, autograd: int) -> Iterator[None]:
    """This thread on one processor and autograd's on another."""
    threads = {threading.get_native_id(): python, **dict.fromkeys(_autograd_threads(), autograd)}
    before = {thread: os.sched_getaffinity(thread) for thread in threads}
    for thread, processor in threads.items():
        os.sched_setaffinity(thread, {processor})
    try:
        yield
    finally:
        for thread, allowed in before.items():
            os.sched_setaffinity(thread, allowed)
