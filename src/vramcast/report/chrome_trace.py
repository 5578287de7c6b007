"""A predicted step for Perfetto (ui.perfetto.dev) or chrome://tracing: host, card, phases, and the memory in use.

The format: "Trace Event Format", complete events (ph X) with times in microseconds, counters (ph C) and names (ph M).
"""

from __future__ import annotations

from typing import Any

from vramcast.timing.results import StepRows
from vramcast.trace.calls import MARKS

CHROME_FORMAT = "vramcast-step"

_PROCESS = 1
_PHASES, _HOST, _CARD = 1, 2, 3
_MICRO = 1e6


def chrome_trace(rows: StepRows, name: str) -> dict[str, Any]:
    """The document; `name` is shown as the process."""
    events: list[dict[str, Any]] = [_named("process_name", 0, name)]
    for thread, label in ((_PHASES, "phases"), (_HOST, "host: issuing ops"), (_CARD, "card: kernels")):
        events.append(_named("thread_name", thread, label))
    events += [_complete(_PHASES, phase, begin, end) for phase, begin, end in rows.phases]
    timeline = rows.timeline
    # The first row of the timeline is the wait for data.
    for i, op in enumerate(rows.names, 1):
        begin, end = timeline.issue_start[i], timeline.issue_end[i]
        details: dict[str, Any] = {"module": rows.modules[i - 1]}
        if end > begin and (op not in MARKS or end - begin > 1e-6):
            events.append(_complete(_HOST, op, begin, end, details))
        if rows.kernels[i - 1]:
            details = {"module": rows.modules[i - 1], "kernels": rows.kernels[i - 1]}
            events.append(_complete(_CARD, op, timeline.start[i], timeline.end[i], details))
        held = {"requested GiB": round(rows.requested_bytes[i - 1] / 2**30, 4)}
        events.append({"ph": "C", "pid": _PROCESS, "name": "memory", "ts": end * _MICRO, "args": held})
    return {"displayTimeUnit": "ms", "otherData": {"format": CHROME_FORMAT}, "traceEvents": events}


def _named(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "name": kind, "args": {"name": name}}


def _complete(thread: int, name: str, begin: float, end: float, args: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "ph": "X", "pid": _PROCESS, "tid": thread, "name": name, "ts": round(begin * _MICRO, 3),
        "dur": round((end - begin) * _MICRO, 3), "args": args or {},
    }  # fmt: skip
