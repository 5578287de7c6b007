"""What NCCL's process group keeps of tensors that it has summed, as marks in a trace.

The group keeps each tensor of an asynchronous collective until somebody waits for its work, or until its watchdog,
which looks every 100 ms, has seen that it is done and a further collective of the group begins (ProcessGroupNCCL.cpp,
`shelvesToUnstash_`). DDP waits for futures and never for the work. Whether the watchdog has looked in time is chance:
the longer the collective has been done, the likelier.

At each further collective there is an event "kept" for each such block, and before it a mark that says for how long its
collective has been done by then, in predicted seconds.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from vramcast.trace.schema import FREE, KEPT, MARK

if TYPE_CHECKING:
    from vramcast.trace.schema import StepTrace

WATCHDOG_SECONDS = 0.1
"""How often NCCL's watchdog looks (kWatchdogThreadSleepMillis)."""
_MARK = "NCCL is done for "


class Return(Enum):
    """When memory comes back where predicted times decide, or chance."""

    EARLIEST = 0.0
    LIKELY = 0.6
    LATEST = 2.0
    """In rounds of the watchdog. It has looked for certain after one, and predicted times may be twice too long; where
    chance is nearly even, the course that takes more is the likely one."""


FORGOTTEN_AFTER_SECONDS = Return.LATEST.value * WATCHDOG_SECONDS


def kept_label(seconds: float) -> str:
    """The mark before a block: its collective is done for so long; below zero, it is not."""
    return f"{_MARK}{seconds:.4f} s"


def settled(trace: StepTrace, when: Return = Return.LIKELY) -> StepTrace:
    """The trace in which blocks that NCCL keeps are freed when it lets go of them; itself where it keeps none."""
    if KEPT not in trace.event_kind:
        return trace
    return _with_frees_at(trace, _moved_frees(trace, when.value * WATCHDOG_SECONDS))


def _moved_frees(trace: StepTrace, seconds: float) -> dict[int, int]:
    """Free → the event "kept" that it has to wait for. At the last of a block nothing keeps it any longer."""
    offers: defaultdict[int, list[int]] = defaultdict(list)
    for event, (code, block) in enumerate(zip(trace.event_kind, trace.event_arg, strict=True)):
        if code == KEPT:
            offers[block].append(event)
    moved = {}
    for block, events in offers.items():
        free = trace.died_event[block]
        released = next((event for event in events if _done_for(trace, event) >= seconds), events[-1])
        if -1 < free < released:
            moved[free] = released
    return moved


def _done_for(trace: StepTrace, event: int) -> float:
    """What the mark before the event says."""
    label = trace.labels[trace.event_arg[event - 1]] if trace.event_kind[event - 1] == MARK else ""
    return float(label.removeprefix(_MARK).removesuffix(" s")) if label.startswith(_MARK) else 0.0


def _with_frees_at(trace: StepTrace, moved: dict[int, int]) -> StepTrace:
    """The events without "kept", frees moved; ops stay beside the events that they were beside."""
    frees: dict[int, list[int]] = {released: [] for released in moved.values()}
    for free, released in sorted(moved.items()):
        frees[released].append(trace.event_arg[free])
    kinds, args = array("b"), array("q")
    now_at: list[int] = []
    for event, (code, arg) in enumerate(zip(trace.event_kind, trace.event_arg, strict=True)):
        now_at.append(len(kinds))
        if code != KEPT and event not in moved:
            kinds.append(code)
            args.append(arg)
        for block in frees.get(event, ()):
            kinds.append(FREE)
            args.append(block)
    now_at.append(len(kinds))
    calls = trace.calls and replace(trace.calls, event=array("q", [now_at[event] for event in trace.calls.event]))
    return trace.changed(event_kind=kinds, event_arg=args, calls=calls)
