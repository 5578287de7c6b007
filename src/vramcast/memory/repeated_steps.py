"""One round of a loop made twice: a pass or a step that was not run, because it would do what the one before did.

A round can be repeated when it leaves behind as much as it found: each block that it frees for an earlier round has a
successor of the same make, which it leaves to the next round, and it leaves nothing else.
"""

from __future__ import annotations

import dataclasses
from array import array
from bisect import bisect_left
from collections import defaultdict
from itertools import compress, pairwise
from typing import Any

from vramcast.trace.calls import BACKWARD_END, ITERATION, OpCalls
from vramcast.trace.schema import ALLOC, BLOCK_EVENTS, FREE, MARK, StepTrace

BLOCK_COLUMNS = ("requested_bytes", "op", "module", "phase", "kind", "stream", "shape")
_CALL_COLUMNS = ("call", "module", "phase", "flags", "event")
END_OF_PASS, END_OF_STEP = "end of pass", "end of step"
"""Labels of the marks after each forward and backward pass, and after all that belongs to a step."""


def full_length(trace: StepTrace, passes: int) -> StepTrace | None:
    """From two marked steps, of two passes at most and of one: the trace of three steps of `passes`, without marks.

    None where a round does not leave things as it found them.
    """
    pass_ends, step_ends = _marks(trace, END_OF_PASS), _marks(trace, END_OF_STEP)
    if len(step_ends) != 2 or len(pass_ends) != min(2, passes) + 1:
        return None
    calls = trace.calls
    longer: StepTrace | None = trace
    if passes > 1:
        first, end, at = pass_ends[0] + 1, pass_ends[1] + 1, pass_ends[2] + 1
        for _ in range(passes - 1):  # the second step has only its first pass
            longer = longer and inserted(longer, first, end, at, step_ends[0] + 1)
            calls = calls and _with_second_pass(calls, first, end, at)
        for _ in range(passes - 2):
            longer = longer and repeated(longer, first, end)
            calls = calls and _moved(calls, end - first)
        if longer is None:
            return None
        step_ends = _marks(longer, END_OF_STEP)
    longer = longer and repeated(longer, step_ends[0] + 1, step_ends[1] + 1)
    calls = calls and _moved(calls, step_ends[1] - step_ends[0])
    return longer and _without_marks(longer, calls and _last_step(calls))


def _with_second_pass(calls: OpCalls, first_event: int, end_event: int, at_event: int) -> OpCalls:
    """The ops of a step with those of the second pass, which were noted before it, after its first."""
    start = _iteration(calls)
    end = start + next(i for i, call in enumerate(calls.call[start:], 1) if calls.ops[call] == BACKWARD_END)
    columns: dict[str, Any] = {}
    for name in _CALL_COLUMNS:
        column: array[int] = getattr(calls, name)
        second, rest = column[:start], column[end:]
        if name == "event":
            second = array("q", [event - first_event + at_event for event in second])
            rest = array("q", [event + end_event - first_event for event in rest])
        columns[name] = column[:end] + second + rest
    return dataclasses.replace(calls, **columns)


def _moved(calls: OpCalls, by: int) -> OpCalls:
    """The step, moved later by this many events."""
    start = _iteration(calls)
    return dataclasses.replace(
        calls, event=calls.event[:start] + array("q", [event + by for event in calls.event[start:]])
    )


def _last_step(calls: OpCalls) -> OpCalls:
    """The rows of the last step alone; calls are numbered in the order in which they appear."""
    start = _iteration(calls)
    columns = {name: getattr(calls, name)[start:] for name in _CALL_COLUMNS}
    number = {old: new for new, old in enumerate(dict.fromkeys(columns["call"]))}
    columns["call"] = array("i", [number[old] for old in columns["call"]])
    return dataclasses.replace(
        calls,
        ops=tuple(calls.ops[old] for old in number),
        arguments=tuple(calls.arguments[old] for old in number),
        **columns,
    )


def _iteration(calls: OpCalls) -> int:
    return next(row for row, call in enumerate(calls.call) if calls.ops[call] == ITERATION)


def repeated(trace: StepTrace, first_event: int, end_event: int) -> StepTrace | None:
    """The events from `first_event` up to `end_event` twice; what followed them follows the second time."""
    return inserted(trace, first_event, end_event, end_event, first_event)


def inserted(trace: StepTrace, first_event: int, end_event: int, at_event: int, since_event: int) -> StepTrace | None:
    """The events from `first_event` up to `end_event` once more before `at_event`, where they find what was made
    from `since_event` on."""
    args, kinds = trace.event_arg, trace.event_kind
    inside = kinds[first_event:end_event], args[first_event:end_event]
    born = list(compress(inside[1], map(ALLOC.__eq__, inside[0])))
    first, end = (born[0], born[-1] + 1) if born else (trace.n_blocks, trace.n_blocks)
    count, base = end - first, _blocks_before(trace, at_event)
    freed = [arg for arg in compress(inside[1], map(FREE.__eq__, inside[0])) if arg < first]
    left = [block for block in born if not 0 <= trace.died_event[block] < end_event]
    there = [
        block
        for block in range(_blocks_before(trace, since_event), base)
        if not 0 <= trace.died_event[block] < at_event
    ]
    makes = {_make(trace, block) for block in freed}
    successor = _successors(trace, freed, left)
    predecessor = _successors(trace, freed, [block for block in there if _make(trace, block) in makes])
    if successor is None or predecessor is None:
        return None
    replaced = {predecessor[block]: successor[block] - first + base for block in freed}
    shift = base - first
    again = [
        arg if code not in BLOCK_EVENTS else predecessor.get(arg, arg) if arg < first else arg + shift
        for code, arg in zip(*inside, strict=True)
    ]
    after = [
        arg if code not in BLOCK_EVENTS else arg + count if arg >= base else replaced.get(arg, arg)
        for code, arg in zip(kinds[at_event:], args[at_event:], strict=True)
    ]
    columns = {}
    for name in BLOCK_COLUMNS:
        column: array[int] = getattr(trace, name)
        columns[name] = column[:base] + column[first:end] + column[base:]
    return trace.changed(
        event_kind=kinds[:at_event] + kinds[first_event:end_event] + kinds[at_event:],
        event_arg=args[:at_event] + array("q", again) + array("q", after),
        **columns,
    )


def _blocks_before(trace: StepTrace, event: int) -> int:
    """How many were made before `event`; they are numbered in that order."""
    return bisect_left(trace.born_event, event)


def _successors(trace: StepTrace, blocks: list[int], others: list[int]) -> dict[int, int] | None:
    """For each block the other one of the same make; None where they do not pair up."""
    if len(blocks) != len(others):
        return None
    waiting: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for block in reversed(others):
        waiting[_make(trace, block)].append(block)
    successor = {}
    for block in sorted(blocks):
        same = waiting[_make(trace, block)]
        if not same:
            return None
        successor[block] = same.pop()
    return successor


def _make(trace: StepTrace, block: int) -> tuple[int, ...]:
    return (
        trace.requested_bytes[block],
        trace.op[block],
        trace.module[block],
        trace.stream[block],
        trace.shape[block],
    )


def _marks(trace: StepTrace, *labels: str) -> list[int]:
    marks = compress(range(trace.n_events), map(MARK.__eq__, trace.event_kind))
    return [event for event in marks if trace.labels[trace.event_arg[event]] in labels]


def _without_marks(trace: StepTrace, calls: OpCalls | None) -> StepTrace:
    """The trace without the marks that the run left."""
    marks = _marks(trace, END_OF_PASS, END_OF_STEP)
    labels = [label for label in trace.labels if label not in (END_OF_PASS, END_OF_STEP)]
    number = {old: labels.index(label) for old, label in enumerate(trace.labels) if label in labels}
    kinds, args = array("b"), array("q")
    for first, end in pairwise((-1, *marks, trace.n_events)):
        kinds += trace.event_kind[first + 1 : end]
        args += trace.event_arg[first + 1 : end]
    if labels != list(trace.labels[: len(labels)]):
        for event, code in enumerate(kinds):
            if code not in BLOCK_EVENTS:
                args[event] = number[args[event]]
    if calls is not None:
        events = array("q", [event - bisect_left(marks, event) for event in calls.event])
        calls = dataclasses.replace(calls, event=events)
    return trace.changed(event_kind=kinds, event_arg=args, labels=tuple(labels), calls=calls)
