"""The allocations made inside one call, in order, read from the caching allocator's own history.

A history is written as words separated by spaces:
  +N   a request of N bytes (before rounding)
  -I   the I-th request of this call (from 0) was freed again inside the call
  ~N   N bytes that were alive before the call were freed inside it
  E    cached segments were given back to the driver (cudaFree)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

MARKER_BYTES = 7919
MARKER_ROUNDED_BYTES = 8192  # what it becomes should the history hold rounded sizes
HISTORY_ENTRIES = 60_000


@dataclass(frozen=True)
class Recorded:
    """What one call returned and allocated."""

    result: Any
    history: str
    peak_bytes: int
    error: str


def _entries() -> list[dict[str, Any]]:
    traces = torch.cuda.memory._snapshot()["device_traces"]
    return list(traces[torch.cuda.current_device()]) if traces else []


def history_words(entries: list[dict[str, Any]]) -> str:
    """The words for everything after the last marker."""
    freed = [(at, entry["size"]) for at, entry in enumerate(entries) if entry["action"] == "free_completed"]
    exact = [at for at, size in freed if size == MARKER_BYTES]
    rounded = [at for at, size in freed if size == MARKER_ROUNDED_BYTES]
    start = exact[-1] + 1 if exact else rounded[0] + 1 if rounded else 0
    words: list[str] = []
    alive: dict[int, int] = {}
    requests = 0
    for entry in entries[start:]:
        action, address, size = entry["action"], entry.get("addr", 0), entry["size"]
        if action == "alloc":
            words.append(f"+{size}")
            alive[address] = requests
            requests += 1
        elif action == "free_requested":
            index = alive.pop(address, None)
            words.append(f"~{size}" if index is None else f"-{index}")
        elif action == "segment_free" and (not words or words[-1] != "E"):
            words.append("E")
    return " ".join(words)


def record(call: Callable[[], Any]) -> Recorded:
    """Run `call` once; an exception is reported, not raised (a broken CUDA context is: it cannot go on)."""
    torch.cuda.memory._record_memory_history(
        "all", context=None, stacks="python", max_entries=HISTORY_ENTRIES, clear_history=True
    )
    marker = torch.empty(MARKER_BYTES, dtype=torch.uint8, device="cuda")
    del marker
    device = torch.cuda.current_device()
    torch._C._cuda_resetPeakMemoryStats(device)
    before = torch._C._cuda_memoryStats(device)["allocated_bytes"]["all"]["current"]
    result, error = None, ""
    try:
        result = call()
    except torch.OutOfMemoryError:
        error = "out of memory"
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as failure:
        error = str(failure).splitlines()[0][:160] if str(failure) else type(failure).__name__
    peak = torch._C._cuda_memoryStats(device)["allocated_bytes"]["all"]["peak"] - before
    history = history_words(_entries())
    return Recorded(result=result, history=history, peak_bytes=peak, error=error)
