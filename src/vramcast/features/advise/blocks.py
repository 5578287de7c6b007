"""What each block of a network keeps for the backward pass, and how long it takes to compute it again.

Blocks are the numbered modules of a network: layers.0, down_blocks.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vramcast.features.advise.runs import Traced
from vramcast.timing import StepTime
from vramcast.trace import StepTrace
from vramcast.trace.schema import ALLOC, FREE, KINDS

_SAVED = tuple(KINDS.index(kind) for kind in ("saved activations", "temporaries", "outputs/other"))
_NUMBERED = re.compile(r"[^.]+\.(?:[^.\d][^.]*\.)*\d+")
"""A component, names, and a number at the end."""
_PASSES = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Block:
    name: str
    """Its name in the model, without the component."""
    kept_bytes: int
    """At the end of the forward pass."""
    left_bytes: int
    """The same when it is checkpointed: what the next block was given."""
    gradients_bytes: int
    seconds: float
    """Time of its forward pass."""


def block_names(traced: Traced, component: str) -> list[str]:
    """Names of the blocks in the order in which they are called."""
    names = (name for name in traced.output_shapes if name.startswith(f"{component}.") and _NUMBERED.fullmatch(name))
    return [name.removeprefix(f"{component}.") for name in names]


def blocks_of(kept: Traced, left: Traced, component: str, scale: float, seconds: Mapping[str, float]) -> list[Block]:
    """`kept` was traced without checkpointing, `left` with all of it; `scale` brings the batch of the first to that of
    the second."""
    names = [f"{component}.{name}" for name in block_names(kept, component)]
    before, after = _kept(kept, names), _kept(left, names)
    gradients = _sums(((row.module, row.gradients_bytes) for row in kept.parameters), names)
    times = _sums(seconds.items(), names)
    return [
        Block(
            name=name.removeprefix(f"{component}."),
            kept_bytes=round(before[name] * scale),
            left_bytes=round(after[name]),
            gradients_bytes=round(gradients[name]),
            seconds=times[name],
        )
        for name in names
    ]


def forward_seconds(time: StepTime) -> dict[str, float]:
    """Module → seconds of its own part of the forward passes of a step."""
    return {
        node.name: node.forward_seconds - sum(child.forward_seconds for child in node.children)
        for node in time.modules.walk()
    }


def passes_bytes(traced: Traced) -> int:
    """The highest level of the forward and backward passes; that of the optimizer may be higher."""
    trace = traced.prediction.trace
    assert trace is not None
    highest = level = 0
    for code, block in zip(trace.event_kind, trace.event_arg, strict=True):
        if code == ALLOC:
            level += trace.requested_bytes[block]
            if level > highest and trace.phases[trace.phase[block]] in _PASSES:
                highest = level
        elif code == FREE:
            level -= trace.requested_bytes[block]
    return highest


def _kept(traced: Traced, names: list[str]) -> dict[str, float]:
    """Bytes of each block that are alive where the backward pass of the second step begins."""
    trace = traced.prediction.trace
    assert trace is not None
    start = _backward(trace)
    rows = (
        (trace.modules[trace.module[block]], trace.requested_bytes[block])
        for block, (born, died) in enumerate(zip(trace.born_event, trace.died_event, strict=True))
        if born < start and not -1 < died < start and trace.kind[block] in _SAVED
        and trace.phases[trace.phase[block]] == "forward"
    )  # fmt: skip
    return _sums(rows, names)


def _backward(trace: StepTrace) -> int:
    """The first event of the backward pass of the second step, or of the first step where there is no second."""
    for step in (1, 0):
        for event, (code, block) in enumerate(zip(trace.event_kind, trace.event_arg, strict=True)):
            if code == ALLOC and trace.step[block] == step and trace.phases[trace.phase[block]] == "backward":
                return event
    return trace.n_events


def _sums(rows: Iterable[tuple[str, float]], names: list[str]) -> dict[str, float]:
    """Values added up by the block that each module lies in."""
    sums = dict.fromkeys(names, 0.0)
    for module, value in rows:
        name = module
        while name and name not in sums:
            name = name.rpartition(".")[0]
        if name:
            sums[name] += value
    return sums
