"""Memory of the computer that a process uses, as the kernel and PyTorch's allocator of pinned memory count it."""

from __future__ import annotations

import ctypes
import functools
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

_STATUS = Path("/proc/self/status")
_FIELDS = ("VmRSS", "RssAnon", "RssFile", "RssShmem", "VmPin", "VmLck")
_SECONDS = 0.002
"""Between two looks: what a step holds, it holds for longer."""


class _MallocInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def resident_bytes() -> dict[str, int]:
    """Resident memory by kind, and what malloc holds from the system (in all arenas) and has given out; empty where
    there is no /proc."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in pairs if name in _FIELDS} | _malloc_bytes()


@functools.cache
def _mallinfo() -> Any:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):  # another C library than glibc
        return None
    function.restype = _MallocInfo
    return function


def _malloc_bytes() -> dict[str, int]:
    function = _mallinfo()
    if function is None:
        return {}
    info = function()
    return {"malloc_held": info.arena + info.hblkhd, "malloc_used": info.uordblks + info.hblkhd}


def pinned_bytes() -> dict[str, int]:
    """PyTorch's pinned memory: held (with what is cached) and in use, now and at the peak."""
    try:
        stats: dict[str, Any] = torch.cuda.host_memory_stats()
    except (AttributeError, RuntimeError):
        return {}
    names = ("allocated_bytes.current", "allocated_bytes.peak", "active_bytes.current", "active_bytes.peak")
    return {name: int(stats[name]) for name in names if name in stats}


class HostWatch(AbstractContextManager["HostWatch"]):
    """Looks at the process's memory while the block lasts; `peaks` are the highest figures of each kind."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _look(self) -> None:
        for name, size in resident_bytes().items():
            self.peaks[name] = max(size, self.peaks.get(name, 0))

    def _watch(self) -> None:
        while not self._ended.wait(_SECONDS):
            self._look()

    def __enter__(self) -> HostWatch:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()
