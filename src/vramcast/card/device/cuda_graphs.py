"""CUDA graphs and memory pools: what is allocated during a capture stays in a pool of its own while the graph lives.

PyTorch's Python code for them (torch.cuda.graph, make_graphed_callables, use_mem_pool) runs as it is; only the classes
and functions of its C++ part are replaced. A replay allocates nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vramcast.allocator.card_streams import without_card
from vramcast.base.errors import CannotPredict
from vramcast.card.dispatch.unknown import caller

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches
    from vramcast.card.dispatch.ledger import Ledger
    from vramcast.card.dispatch.op_log import OpLog
    from vramcast.card.dispatch.position import Position

Handle = tuple[int, int]
"""What PyTorch calls a pool: one of its two numbers says who made it."""


class CudaGraphs:
    """The graphs of a card, the pools they share, and the capture that is under way."""

    def __init__(
        self, ledger: Ledger, position: Position, op_log: OpLog, note: Callable[[str, str, Any], None]
    ) -> None:
        self.ledger = ledger
        self.op_log = op_log
        self._position = position
        self._note = note
        self._numbers: dict[Handle, int] = {}
        self._users: dict[int, int] = {}
        self._next_graph = 1
        self._next_handle = 1
        self._capturing: dict[int, int] = {}
        """Stream -> the pool that was in use on it before."""
        self._made = 0
        self._captured = 0
        self._random_state: list[torch.Tensor] = []
        self._registered = 0

    @property
    def awaited(self) -> bool:
        """A graph object was made and none captured yet, or steps are made on a side stream, which is how a program
        warms up for a capture."""
        if self._captured:
            return self._made > self._captured
        return bool(self._made) or (without_card(self.ledger.stream) != 0 and self._position.steps_done > 0)

    @property
    def is_capturing(self) -> bool:
        return self.ledger.stream in self._capturing

    def refuse_synchronizing(self) -> None:
        if self.is_capturing:
            kind: Any = getattr(torch, "AcceleratorError", RuntimeError)
            raise kind("CUDA error: operation not permitted when stream is capturing")

    def note_what_is_missing(self) -> None:
        if self.awaited:
            self._note(
                "CUDA graphs",
                "a CUDA graph was about to be captured when the run ended: the memory of its own pool is not counted",
                None,
            )

    # -- pools ----------------------------------------------------------------------------------------------------

    def new_handle(self) -> Handle:
        self._next_handle += 1
        return (0, self._next_handle - 1)

    def use(self, handle: Handle) -> int:
        number = self._numbers.setdefault(handle, len(self._numbers) + 1)
        self._users[number] = self._users.get(number, 0) + 1
        return number

    def leave(self, number: int, *, at_once: bool = False) -> None:
        self._users[number] -= 1
        if not self._users[number]:
            self.ledger.give_up_pool(number, at_once=at_once)

    # -- graphs ---------------------------------------------------------------------------------------------------

    def graph_made(self) -> None:
        self._made += 1

    def begin(self, handle: Handle | None) -> tuple[Handle, int]:
        if without_card(self.ledger.stream) == 0:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. "
                "(However, after capture, it's ok to replay them on the default stream.)"
            )
        if self.is_capturing:
            raise RuntimeError("This stream is capturing a CUDA graph already.")
        if not self._registered:
            # The generator's seed and offset, which a replay reads from memory.
            self._random_state = [torch.empty(1, dtype=torch.int64, device="cuda") for _ in range(2)]
        self._registered += 1
        if handle is None:
            handle = (self._next_graph, 0)
            self._next_graph += 1
        number = self.use(handle)
        stream = self.ledger.stream
        self._capturing[stream] = self.ledger.pools.get(stream, 0)
        self.ledger.pools[stream] = number
        return handle, number

    def end(self) -> None:
        stream = self.ledger.stream
        if stream not in self._capturing:
            raise RuntimeError("Capture must end on the same stream it began on.")
        before = self._capturing.pop(stream)
        if before:
            self.ledger.pools[stream] = before
        else:
            del self.ledger.pools[stream]
        self._captured += 1

    def unregister(self) -> None:
        self._registered -= 1
        if not self._registered:
            self._random_state = []


def install(put: Patches, graphs: CudaGraphs) -> None:
    class CUDAGraph:
        """torch.cuda.CUDAGraph."""

        def __init__(self, keep_graph: bool = False) -> None:
            self._handle: Handle | None = None
            self._number = 0
            self._begun = self._ready = False
            self._times_begun = 0
            self._log_begun = (0, True)
            self._recorded: list[int] = []
            graphs.graph_made()

        def capture_begin(self, pool: Handle | None = None, capture_error_mode: str = "global", **_: Any) -> None:
            if self._begun or self._ready:
                raise RuntimeError("This CUDAGraph instance already owns a captured graph.")
            self._handle, self._number = graphs.begin(pool)
            self._begun = True
            self._times_begun += 1
            self._log_begun = graphs.op_log.begin_recording()

        def capture_end(self) -> None:
            graphs.end()
            self._recorded = graphs.op_log.end_recording(self._log_begun)
            self._begun, self._ready = False, True

        def instantiate(self) -> None: ...

        def replay(self) -> None:
            if not self._ready:
                raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
            graphs.op_log.replay(self._recorded)

        def pool(self) -> Handle:
            if not self._ready or self._handle is None:
                raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
            return self._handle

        def reset(self) -> None:
            if self._number:
                graphs.leave(self._number)
            self._number = 0
            self._ready = False

        def register_generator_state(self, generator: Any) -> None: ...
        def enable_debug_mode(self) -> None: ...
        def debug_dump(self, debug_path: str) -> None: ...

        def __del__(self) -> None:
            self.reset()
            for _ in range(self._times_begun):
                graphs.unregister()

    class MemPool:
        """torch.cuda.MemPool."""

        def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False, **_: Any) -> None:
            if allocator is not None or use_on_oom or no_split:
                raise CannotPredict(
                    f"torch.cuda.MemPool with an allocator of its own, use_on_oom or no_split is used at {caller()}: "
                    "what such a pool takes is not modelled."
                )
            self.id = graphs.new_handle()
            self._number = graphs.use(self.id)

        def use_count(self) -> int:
            return graphs._users[self._number]

        def snapshot(self, include_traces: bool = True) -> list[Any]:
            return []

        def __del__(self) -> None:
            if hasattr(self, "_number"):
                graphs.leave(self._number, at_once=True)

    def begin_pool(index: int, handle: Handle) -> None:
        graphs.ledger.pools[graphs.ledger.stream] = graphs.use(handle)

    def end_pool(index: int, handle: Handle) -> None:
        number = graphs._numbers[handle]
        for stream in [stream for stream, pool in graphs.ledger.pools.items() if pool == number]:
            del graphs.ledger.pools[stream]

    def release_pool(index: int, handle: Handle) -> None:
        graphs.leave(graphs._numbers[handle])

    for owner in (torch.cuda, torch.cuda.graphs):
        put.set(owner, "CUDAGraph", CUDAGraph)
        put.set(owner, "graph_pool_handle", graphs.new_handle)
    put.set(torch.cuda.graphs.graph, "default_capture_stream", None)
    for owner in (torch.cuda, torch.cuda.memory):
        put.set(owner, "MemPool", MemPool)
    for module, name, function in (
        (torch.cuda.memory, "_cuda_beginAllocateCurrentThreadToPool", begin_pool),
        (torch.cuda.memory, "_cuda_beginAllocateToPool", begin_pool),
        (torch.cuda.memory, "_cuda_endAllocateToPool", end_pool),
        (torch.cuda.memory, "_cuda_releasePool", release_pool),
    ):
        if hasattr(module, name):
            put.set(module, name, function)
            put.set(torch._C, name, function)
    put.set(torch._C, "_host_emptyCache", lambda: None)  # a build without CUDA has none
