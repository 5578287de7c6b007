"""A stage of a pipeline in the order of another: equal stages run the same passes, only earlier or later.

Under 1F1B a stage runs as many forward passes ahead as there are stages from it to the last. The forward passes among
themselves, and the backward passes among themselves, keep their order; so the trace of one stage, its passes put into
the order of another, is the trace of that one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

from vramcast.memory.repeated_steps import BLOCK_COLUMNS
from vramcast.trace.schema import ALLOC, BACKWARD_PASS, BLOCK_EVENTS, FORWARD_PASS, MARK, StepTrace


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[str]:
    """The passes of a stage in order, as labels."""
    ahead = min(microbatches, stages - stage)
    order = [f"{FORWARD_PASS}{number}" for number in range(ahead)]
    for number in range(microbatches):
        order.append(f"{BACKWARD_PASS}{number}")
        if ahead + number < microbatches:
            order.append(f"{FORWARD_PASS}{ahead + number}")
    return order


def rescheduled(trace: StepTrace, order: Sequence[str]) -> StepTrace | None:
    """The passes of every step in this order; None where they cannot be had in it. Its ops are left out."""
    marks = [
        event
        for event in range(trace.n_events)
        if trace.event_kind[event] == MARK
        and trace.labels[trace.event_arg[event]].startswith((FORWARD_PASS, BACKWARD_PASS))
    ]
    if not marks or len(marks) % len(order):
        return None
    ends = dict(pairwise((*marks, trace.n_events)))
    events = list(range(marks[0]))
    for step in range(0, len(marks), len(order)):
        named = {trace.labels[trace.event_arg[mark]]: mark for mark in marks[step : step + len(order)]}
        if set(named) != set(order) or order[-1] != trace.labels[trace.event_arg[marks[step + len(order) - 1]]]:
            return None
        for label in order:
            events += range(named[label], ends[named[label]])
    return _in_order(trace, events)


def _in_order(trace: StepTrace, events: Sequence[int]) -> StepTrace | None:
    """Blocks are numbered as they are made; None where one would be freed before it is made."""
    number: dict[int, int] = {}
    kinds, args = array("b"), array("q")
    for event in events:
        kind, arg = trace.event_kind[event], trace.event_arg[event]
        if kind == ALLOC:
            number[arg] = len(number)
        if kind in BLOCK_EVENTS:
            if arg not in number:
                return None
            arg = number[arg]
        kinds.append(kind)
        args.append(arg)
    columns = {
        name: array(column.typecode, [column[block] for block in number])
        for name in BLOCK_COLUMNS
        for column in [getattr(trace, name)]
    }
    return trace.changed(event_kind=kinds, event_arg=args, calls=None, **columns)
