"""What the stages of a network hand on and later stages still hold: skip connections, and what the next stage keeps."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from vramcast.trace.schema import StepTrace


def held_outputs_bytes(trace: StepTrace, output_shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Bytes of outputs, in the last forward pass, that are still alive when the stage after the next one begins.

    A stage is a direct child of a component, such as `network.stage1`; its output is the last tensor of that size that
    was made in it.
    """
    if "forward" not in trace.phases:
        return 0
    forward, step = list(trace.phases).index("forward"), max(0, trace.steps - 1)
    elements = {name: prod(shape) for name, shape in output_shapes.items() if name.count(".") == 1}
    stage_of = {number: name for number, path in enumerate(trace.modules) if (name := _stage(path)) in elements}
    begins: dict[str, int] = {}
    outputs: dict[str, int] = {}
    for block, number in enumerate(trace.module):
        stage = stage_of.get(number)
        if stage is None or trace.step[block] != step or trace.phase[block] != forward:
            continue
        begins.setdefault(stage, trace.born_event[block])
        if _elements(trace.shapes[trace.shape[block]]) == elements[stage]:
            outputs[stage] = block
    order = sorted(begins, key=begins.__getitem__)
    held = 0
    for place, stage in enumerate(order[:-2]):
        block = outputs.get(stage, -1)
        if block >= 0 and not 0 <= trace.died_event[block] < begins[order[place + 2]]:
            held += trace.requested_bytes[block]
    return held


def _stage(path: str) -> str:
    return ".".join(path.split(".")[:2])


def _elements(shape: str) -> int:
    """Of the text of a shape, `float32[1, 96, 6, 192, 192]`."""
    _, _, sizes = shape.rstrip("]").partition("[")
    return prod(int(size) for size in sizes.split(", ")) if sizes else 0
