"""The processes that are watched: those named, and all that they started."""

from __future__ import annotations

from collections.abc import Iterable

from vramcast.base.errors import UsageError
from vramcast.gpus.processes import parents, start_time


class ProcessTree:
    """One that was seen in the tree stays in it when its parent ends, which makes it nobody's child."""

    def __init__(self, roots: Iterable[int]) -> None:
        self._started: dict[int, int] = {}
        self._roots: dict[int, int] = {}
        for pid in roots:
            started = start_time(pid)
            if started is None:
                raise UsageError(f"--pid {pid}: there is no such process here; `vramcast gpus --here` lists them")
            self._roots[pid] = self._started[pid] = started

    def members(self) -> frozenset[int]:
        """The processes of the tree that run now."""
        self._started = {pid: at for pid, at in self._started.items() if start_time(pid) == at}
        children: dict[int, list[int]] = {}
        for child, parent in parents().items():
            children.setdefault(parent, []).append(child)
        waiting = list(self._started)
        while waiting:
            for child in children.get(waiting.pop(), ()):
                started = None if child in self._started else start_time(child)
                if started is not None:
                    self._started[child] = started
                    waiting.append(child)
        return frozenset(self._started)

    def has_ended(self) -> bool:
        """None of those that were named runs any more."""
        return all(start_time(pid) != at for pid, at in self._roots.items())
