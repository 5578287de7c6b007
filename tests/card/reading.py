"""What a trace holds, as the tests ask for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vramcast.card.device.context import VirtualGpu
from vramcast.memory import account, replay
from vramcast.trace import KINDS, StepTrace
from vramcast.trace.schema import ALLOC


def ops(trace: StepTrace) -> list[str]:
    """The op of every allocation, in order."""
    return [trace.ops[trace.op[block]] for block in range(trace.n_blocks)]


def sizes_of(trace: StepTrace, op: str) -> list[int]:
    """Bytes requested by each allocation inside `op`."""
    return [trace.requested_bytes[block] for block, name in enumerate(ops(trace)) if name == op]


def by_kind(trace: StepTrace, event: int) -> dict[str, int]:
    """Live bytes just after `event`."""
    held = dict.fromkeys(KINDS, 0)
    for block in replay(trace).live_blocks(event):
        held[KINDS[trace.kind[block]]] += trace.requested_bytes[block]
    return held


def by_module(trace: StepTrace, event: int) -> dict[str, dict[str, int]]:
    tree = account(replay(trace), event=event).modules
    return {node.name: dict(node.by_kind_bytes) for node in tree.walk()}


def first_event(trace: StepTrace, phase: str, step: int) -> int:
    """The first allocation of a phase, in a step counted from 0."""
    for event, (code, block) in enumerate(zip(trace.event_kind, trace.event_arg, strict=True)):
        if code == ALLOC and trace.step[block] == step and trace.phases[trace.phase[block]] == phase:
            return event
    raise AssertionError(f"no {phase} in step {step}")


def last_event(trace: StepTrace, phase: str, step: int) -> int:
    """The last allocation of a phase, in a step counted from 0."""
    return max(
        trace.born_event[block]
        for block in range(trace.n_blocks)
        if trace.step[block] == step and trace.phases[trace.phase[block]] == phase
    )


def growth(action: Callable[[], object]) -> tuple[int, object]:
    """How many bytes are allocated more after the action than before, and what it returned."""
    before = torch.cuda.memory_allocated()
    result = action()
    return torch.cuda.memory_allocated() - before, result


def allocations(gpu: VirtualGpu, action: Callable[[], object]) -> list[int]:
    """Bytes requested by every allocation that the action makes."""
    first = gpu.trace().n_blocks
    action()
    return list(gpu.trace().requested_bytes[first:])
