"""The watch itself: look, note, show, wait; until the processes have ended or somebody says enough."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from vramcast.features.watch.history import History
from vramcast.features.watch.log import LogFile
from vramcast.features.watch.sample import Sample
from vramcast.features.watch.sampler import Sampler

SHOW_SECONDS = 0.25
"""A command's output is passed on this often, however seldom the cards are looked at."""


class Stop:
    """Ctrl-C and SIGTERM as a wish to end, while `with` lasts.

    `patient`: Ctrl-C went to the command too; the watch ends with it, or at the second Ctrl-C.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self._event = threading.Event()
        self._patient = patient
        self._before: dict[int, Any] = {}
        self.signal: int | None = None

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _received(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self._patient:
            self._patient = False
            return
        self.signal = number
        self._event.set()

    def wake(self) -> None:
        """Whatever is waited for has happened."""
        self._event.set()

    def wait(self, seconds: float) -> None:
        self._event.wait(max(0.0, seconds))


def run(
    sampler: Sampler,
    history: History,
    stop: Stop,
    *,
    interval: float,
    log: LogFile | None,
    has_ended: Callable[[], bool],
    show: Callable[[Sample, list[str]], None],
    between: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """`show` gets every sample with what is to be warned of; `between` is called several times a second."""
    due = clock()
    while True:
        sample = sampler.sample()
        warnings = history.add(sample)
        if log is not None:
            log.add(sample, history.predicted_bytes)
        show(sample, warnings)
        due = max(due + interval, clock())
        while stop.signal is None and not has_ended() and clock() < due:
            stop.wait(min(SHOW_SECONDS, due - clock()))
            between()
        if stop.signal is not None or has_ended():
            return
