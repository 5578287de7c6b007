"""Which convolutions turn their operands: those for which cuDNN was given the memory to do so.

Kernels for tensor cores want channels last. Where channels come first, cuDNN turns the operands in a workspace and the
result back; a convolution without such a workspace is computed as it lies, by one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramcast.timing.costs.signature import Arguments, Tensor, parse_arguments
from vramcast.trace import StepTrace
from vramcast.trace.calls import PYTHON, REPLAYED, OpCalls
from vramcast.trace.schema import ALLOC, KINDS

_WORKSPACES = KINDS.index("workspaces")
_FORWARD, _BACKWARD = "aten.convolution.", "aten.convolution_backward."
_MASK = 10
"""The argument of a backward call that says which gradients it makes."""


def turned_operands(trace: StepTrace, calls: OpCalls, rows: Sequence[int]) -> dict[int, tuple[bool, ...]]:
    """By distinct call: for a forward call whether it turns its operands, for a backward call whether it does for the
    gradient of the data and for that of the weight. A replay allocates nothing: what it replays was recorded before."""
    found = _turned_in(trace, calls, rows)
    if any(calls.flags[row] & REPLAYED for row in rows):
        found = _turned_in(trace, calls, range(len(calls))) | found
    return found


def _turned_in(trace: StepTrace, calls: OpCalls, rows: Sequence[int]) -> dict[int, tuple[bool, ...]]:
    wanted = {n for n, op in enumerate(calls.ops) if op.startswith((_FORWARD, _BACKWARD))}
    found: dict[int, tuple[bool, ...]] = {}
    first = None
    for row in rows:
        number, end = calls.call[row], calls.event[row]
        if calls.ops[number] == PYTHON:
            continue  # noted with the op that follows
        is_judged = number in wanted and number not in found and not calls.flags[row] & REPLAYED
        if is_judged and first is not None:
            blocks = [trace.event_arg[event] for event in range(first, end) if trace.event_kind[event] == ALLOC]
            sizes = [(trace.requested_bytes[block], trace.kind[block] == _WORKSPACES) for block in blocks]
            arguments = parse_arguments(calls.arguments[number])
            if calls.ops[number].startswith(_FORWARD):
                found[number] = (_is_turned(sizes, arguments.tensor(0), arguments.tensor(1)),)
            else:
                found[number] = _backward(sizes, arguments)
        first = end
    return found


def _backward(sizes: list[tuple[int, bool]], arguments: Arguments) -> tuple[bool, bool]:
    """The gradient of the data and its workspace come first, then those of the weight."""
    gradient, weight, mask = arguments.tensor(0), arguments.tensor(2), arguments.args[_MASK:]
    makes = mask[0] if mask and isinstance(mask[0], list) else [True, True]
    if weight is None or makes[:2] != [True, True]:
        is_turned = _is_turned(sizes, gradient, weight)
        return is_turned, is_turned
    outputs = [place for place, (size, is_workspace) in enumerate(sizes) if not is_workspace and size == weight.nbytes]
    begin = outputs[-1] if outputs else len(sizes)
    return _is_turned(sizes[:begin], gradient, weight), _is_turned(sizes[begin:], gradient, weight)


def _is_turned(sizes: list[tuple[int, bool]], one: Tensor | None, weight: Tensor | None) -> bool:
    """Whether a workspace holds at least one of the tensors that are turned, and the weight."""
    least = sum(tensor.nbytes for tensor in (one, weight) if tensor is not None)
    return any(is_workspace and size >= least for size, is_workspace in sizes)
