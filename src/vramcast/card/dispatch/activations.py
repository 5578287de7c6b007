"""Which blocks are activations that autograd keeps, and which are results that the program keeps.

Autograd's own list cannot be read without disturbing it, so this follows from lifetimes: a block that the forward pass
made and that is alive when the backward pass starts is kept for something. If it is freed during a backward pass, it
was kept for that; if it outlives it, the program still holds it.
"""

from __future__ import annotations

from vramcast.trace import TraceBuilder
from vramcast.trace.builder import KIND_ID

TEMPORARIES = KIND_ID["temporaries"]
SAVED = KIND_ID["saved activations"]
INPUTS = KIND_ID["inputs"]
HELD = KIND_ID["outputs/other"]

_FACTORIES = ("rand", "zeros", "ones", "full", "arange", "linspace", "normal", "eye", "scalar_tensor")


class Activations:
    """Told where forward and backward passes begin and end; `settle` gives each kept block its kind."""

    def __init__(self, builder: TraceBuilder, outside: int) -> None:
        self._builder = builder
        self._outside = outside
        self._region_start = 0
        self._kept: set[int] = set()
        self._settled: set[int] = set()
        self._backward_starts: list[int] = []
        self._backward_ends: list[int] = []

    def begin_recompute(self) -> None:
        """A checkpointed block runs again inside the backward pass."""
        self._region_start = self._builder.n_events

    def end_recompute(self) -> None:
        self._keep()

    def begin_backward(self) -> None:
        self._keep()
        self._backward_starts.append(self._builder.n_events)

    def end_backward(self) -> None:
        self._backward_ends.append(self._builder.n_events)

    def out_of_memory(self, grad_enabled: bool) -> None:
        """The forward pass ends here: what it has left for a backward pass that will not come."""
        builder = self._builder
        if len(self._backward_ends) < len(self._backward_starts):
            self._keep()
            return
        for block in builder.alive_since(self._region_start):
            if builder.kind_of(block) == TEMPORARIES:
                if builder.module_of(block) == self._outside:
                    builder.set_kind(block, INPUTS if self._is_input(block) else HELD)
                elif grad_enabled:
                    builder.set_kind(block, SAVED)

    def _keep(self) -> None:
        self._kept |= self._builder.alive_since(self._region_start)
        self._region_start = self._builder.n_events

    def settle(self) -> None:
        """Decide about every block kept so far; may be called again as the run goes on."""
        builder = self._builder
        undecided = {block for block in self._kept if block in self._settled or builder.kind_of(block) == TEMPORARIES}
        freed_in_backward = set(self._freed_in_backward(undecided))
        in_backward = len(self._backward_ends) < len(self._backward_starts)
        alive = undecided & builder.alive_since(0) if in_backward else set()
        for block in undecided:
            if self._is_input(block):
                kind = INPUTS
            else:
                kind = SAVED if block in freed_in_backward or block in alive else HELD
            builder.set_kind(block, kind)
        self._settled = undecided

    def _is_input(self, block: int) -> bool:
        """A batch that is made on the card: from nothing, outside every module."""
        return self._builder.module_of(block) == self._outside and _is_factory(self._builder.op_of(block))

    def _freed_in_backward(self, blocks: set[int]) -> list[int]:
        freed = []
        starts, ends = self._backward_starts, self._backward_ends
        at = 0
        for event, block in self._builder.frees():
            while at < len(ends) and ends[at] <= event:
                at += 1
            if at < len(starts) and starts[at] <= event and block in blocks:
                freed.append(block)
        return freed


def _is_factory(op: str) -> bool:
    return op.removeprefix("aten.").startswith(_FACTORIES) and not op.endswith("_like")
