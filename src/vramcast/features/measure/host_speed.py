"""How fast the host is while steps are timed.

Where several guests share a computer, a neighbour's work on the other half of a core makes this one's take up to twice
as long, for seconds at a time, and no counter shows it. A loop in pure Python does. It is timed on every processor, the
program's two busy threads (Python's and autograd's) are put onto the fastest, and it is timed there again after the
step. What it took on average over its fastest says how much longer the host took for everything.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter
from typing import Any

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


def slowdown(watched: Mapping[str, Any]) -> float:
    """How many times as long as undisturbed the host took, on average over the steps."""
    loops = [loop for step in watched["steps"] for loop in step["loops"]]
    return geometric_mean(loops) / float(watched["loop_seconds"])


def _alike(steps: Sequence[Mapping[str, Any]]) -> bool:
    seconds = [step["device_seconds"] for step in steps]
    return bool(max(seconds) <= _SAME * min(seconds))


def _survey() -> dict[int, float]:
    """What the loop takes on each processor that this thread may use, one after the other."""
    allowed = os.sched_getaffinity(0)
    seconds = {}
    try:
        for processor in sorted(allowed):
            os.sched_setaffinity(0, {processor})
            seconds[processor] = min(_loop(), _loop())
    finally:
        os.sched_setaffinity(0, allowed)
    return seconds


def _loop() -> float:
    started, total = perf_counter(), 0
    for number in range(_LOOPS):
        total += number
    return perf_counter() - started


def _autograd_threads() -> list[int]:
    threads = []
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text().startswith(_AUTOGRAD):
                threads.append(int(task.name))
        except OSError:  # it ended meanwhile
            continue
    return threads


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
