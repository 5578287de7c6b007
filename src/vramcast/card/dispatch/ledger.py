"""The running account: each allocation goes into the trace and through the allocator as it happens."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from vramcast.allocator import CachingAllocator, OutOfMemory
from vramcast.allocator.card_streams import mark_on, place_of, stream_on
from vramcast.allocator.private_pools import emptied, given_up, stream_in_pool, without_pool
from vramcast.allocator.stream_uses import USED_ELSEWHERE
from vramcast.allocator.trials import Trial, try_out
from vramcast.card.device import streams
from vramcast.card.dispatch.storages import GPU, HOST, HOST_ATTRIBUTE, Block, HostBlock, attach, block_of
from vramcast.card.dispatch.unknown import line_of_code
from vramcast.trace import TraceBuilder
from vramcast.trace.builder import KIND_ID
from vramcast.trace.host import PAGEABLE, HostLog

WEIGHTS = KIND_ID["weights"]
GRADIENTS = KIND_ID["gradients"]
OPTIMIZER_STATE = KIND_ID["optimizer state"]
INPUTS = KIND_ID["inputs"]
BUFFERS = KIND_ID["buffers"]
AUTOCAST_COPIES = KIND_ID["autocast copies"]
WORKSPACES = KIND_ID["workspaces"]


class Ledger:
    """Knows what is being run (op, module, phase, stream) and books every byte on it."""

    def __init__(self, new_allocator: Callable[[], CachingAllocator]) -> None:
        self._new_allocator = new_allocator
        self.allocator = new_allocator()
        """The one of the card in use: where what comes next is booked."""
        self.cards = [0]
        """The machine's cards that the program has used, in that order."""
        self.place = 0
        """The place in `cards` of the one in use."""
        self.several_cards = False
        self.on_second_card: Callable[[], None] = lambda: None
        self._allocators = [self.allocator]
        self._streams = [0]
        """The current stream of each card; that of the card in use is `stream`."""
        self.builder = TraceBuilder()
        self.host = HostLog()
        self.host_kind: str | None = None
        """What is made on the host now, where that is known from what is being done."""
        self.host_where = PAGEABLE
        self.open = True
        self.sparse_seen = False
        """The program has made or moved a sparse tensor."""
        self.overwritten_seen = False
        """A CUDA graph may have written over a tensor that the program still has."""
        self.on_first_use: Callable[[], None] | None = None
        """Called before anything is booked on the card; it takes itself away."""
        self.before_next_allocation: Callable[[], None] | None = None
        self.op = self.builder.intern_op("setup")
        self.module = self._no_module = self.builder.intern_module("")
        self.phase = self.builder.intern_phase("setup")
        self.stream = 0
        self.pools: dict[int, int] = {}
        """The private pool that allocations on a stream go to now."""
        self._shape_ids: dict[tuple[torch.dtype, torch.Size], int] = {}
        self.describe_out_of_memory: Callable[[OutOfMemory], str] = str
        self.out_of_memory_observers: list[Callable[[int, int, int, int], object]] = []
        """What the program attached with torch._C._cuda_attach_out_of_memory_observer."""
        # A free can come at any moment, from the garbage collector or another thread, also while the allocator is
        # at work; it then waits until that is done.
        self._lock = threading.RLock()
        self._busy = False
        self._waiting: list[tuple[int, int]] = []
        self._used_elsewhere: dict[int, set[int]] = {}
        """Blocks that other streams use, and these."""
        self.timeline = streams.begin()
        self.timeline.place_of_card = self.place_of_card
        self._unfinished: list[tuple[list[tuple[int, int]], int]] = []
        """Freed, but used on other streams: the events to wait for, and the block."""

    # -- cards ----------------------------------------------------------------------------------------------

    @property
    def card(self) -> int:
        """The number of the card in use, as the program counts."""
        return self.cards[self.place]

    def use_card(self, card: int) -> None:
        """What comes next is booked on this card of the machine, and runs on the stream that is current there."""
        if card != self.cards[self.place] and card >= 0:
            self._enter(self.place_of_card(card))

    def place_of_card(self, card: int) -> int:
        """A card that was not used before is from now on."""
        if card in self.cards:
            return self.cards.index(card)
        if not self.several_cards and not self.builder.n_blocks:
            self.cards[0] = card  # nothing lies anywhere yet: the program chooses its card
            return 0
        if not self.several_cards:
            self.several_cards = True
            self.on_second_card()
        self.cards.append(card)
        self._allocators.append(self._new_allocator())
        self._streams.append(stream_on(len(self.cards) - 1, 0))
        return len(self.cards) - 1

    def _enter(self, place: int) -> None:
        self._streams[self.place] = self.stream
        self.place, self.allocator, self.stream = place, self._allocators[place], self._streams[place]

    def use_stream(self, stream: int) -> None:
        """This stream is the current one of its card, and that card is in use."""
        if self.several_cards:
            self._enter(place_of(stream))
        self.stream = stream

    def stream_on_card(self, card: int) -> int:
        """The current stream of a card."""
        place = self.place_of_card(card)
        return self.stream if place == self.place else self._streams[place]

    def allocator_of(self, card: int) -> CachingAllocator:
        """The allocator of a card; an idle one where the program has not used it."""
        return self._allocators[self.cards.index(card)] if card in self.cards else self._new_allocator()

    @property
    def allocators(self) -> Sequence[CachingAllocator]:
        """Of the cards that the program has used."""
        return self._allocators

    def mark(self, label: str, kind: str = "mark") -> None:
        """A mark in the trace that concerns the card in use."""
        self.builder.mark(kind, mark_on(self.place, label))

    # -- blocks ---------------------------------------------------------------------------------------------

    def record_stream(self, tensor: torch.Tensor, stream: int) -> bool:
        """`tensor.record_stream`: its memory is only free again when that stream is done with it, too. Whether that is
        another than the one it was made on."""
        block = block_of(tensor)
        if block is None or block.block_id < 0 or without_pool(self.builder.stream_of(block.block_id)) == stream:
            return False
        self._used_elsewhere.setdefault(block.block_id, set()).add(stream)
        return True

    def allocate(self, nbytes: int, shape: int = 0) -> tuple[int, int]:
        """Book `nbytes` on the card: (block id, address). Zero bytes take nothing, as on CUDA."""
        if nbytes <= 0 or not self.open:
            return -1, 0
        if self.before_next_allocation is not None:
            callback, self.before_next_allocation = self.before_next_allocation, None
            callback()
        builder = self.builder
        place = self.op, self.module
        if place not in builder.lines:
            builder.lines[place] = line_of_code()
        stream = self.stream
        if self.pools and stream in self.pools:
            stream = stream_in_pool(self.pools[stream], stream)
        with self._lock:
            self._busy = True
            if self._unfinished:
                self._process_events()
            try:
                address = self.allocator.malloc(nbytes, stream)
                block_id = builder.alloc(nbytes, self.op, self.module, self.phase, stream, shape)
                refused = None
            except OutOfMemory as error:
                # Its traceback would hold this frame, and this frame it: nothing above would be freed any more.
                refused = error.with_traceback(None)
                block_id = builder.alloc(nbytes, self.op, self.module, self.phase, stream, shape)
                builder.mark("oom")
                builder.free(block_id)
            finally:
                self._busy = False
            if self._waiting:
                self._release_waiting()
        if refused is not None:
            text = self.describe_out_of_memory(refused)
            for observer in self.out_of_memory_observers:
                observer(self.card, nbytes, refused.reserved_bytes, refused.free_bytes or 0)
            raise torch.OutOfMemoryError(text) from None
        return block_id, address

    def driver_event(self, name: str) -> None:
        """The driver takes memory for itself; `name` is one of DRIVER_EVENTS."""
        self.allocator.driver_event(name)
        self.mark(name)

    def give_up_pool(self, pool: int, *, at_once: bool) -> None:
        """The owner of a private pool is gone."""
        if self.open:
            self.allocator.give_up_pool(pool, at_once=at_once)
            self.mark(emptied(pool) if at_once else given_up(pool))

    def wait_for_stream(self) -> None:
        """The host waits for what the current stream was given: it copies or reads."""
        if self._unfinished:
            self.timeline.finish_stream(self.stream)

    def release(self, block_id: int, address: int) -> None:
        if not self.open or sys.is_finalizing():
            return
        if self._busy or not self._lock.acquire(blocking=False):
            self._waiting.append((block_id, address))
            return
        try:
            self._free(block_id, address)
            if self._waiting:
                self._release_waiting()
        finally:
            self._lock.release()

    def _free(self, block_id: int, address: int) -> None:
        self._busy = True
        place = place_of(self.builder.stream_of(block_id)) if self.several_cards else 0
        self._allocators[place].free(address)
        used_on = self._used_elsewhere.pop(block_id, None) if self._used_elsewhere else None
        if used_on:
            self.builder.mark("mark", USED_ELSEWHERE)
        self.builder.free(block_id)
        if used_on:
            events = [(stream, self.timeline.record(stream)[stream]) for stream in sorted(used_on)]
            self._unfinished.append((events, block_id))
        self._busy = False

    def _process_events(self) -> None:
        """Blocks whose streams are done with them can be used again; the allocator looks before it allocates."""
        has_happened = self.timeline.has_happened
        left = []
        for item in self._unfinished:
            events, block_id = item
            if all(has_happened(*event) for event in events):
                self.builder.reusable(block_id)
            else:
                left.append(item)
        self._unfinished = left

    def _release_waiting(self) -> None:
        while self._waiting:
            self._free(*self._waiting.pop(0))

    def book(self, storage: torch.UntypedStorage, device: int, tensor: torch.Tensor | None = None) -> Block:
        """Give a new storage its block, on the card or on the host. `tensor` is what it was made for."""
        nbytes = storage.nbytes()
        if device == GPU:
            if self.on_first_use is not None:
                self.on_first_use()
            block_id, address = self.allocate(nbytes, 0 if tensor is None else self.shape_id(tensor))
            block = Block(self, GPU, nbytes, block_id, address, self.cards[self.place])
        else:
            block = Block(None, HOST, nbytes, -1, id(storage))
            if self.open and nbytes:
                block.host = HostBlock(self.host, nbytes, self.host_where, self.host_kind)
        attach(storage, block)
        return block

    def book_again(self, storage: torch.UntypedStorage, nbytes: int, shape: int) -> None:
        """Book on the card a new storage that is made as one was before: of so many bytes, for such a tensor."""
        if self.on_first_use is not None:
            self.on_first_use()
        block_id, address = self.allocate(nbytes, shape)
        attach(storage, Block(self, GPU, nbytes, block_id, address, self.cards[self.place]))

    @contextmanager
    def made_on_host(self, where: int | None = None, kind: str | None = None) -> Iterator[None]:
        """What is made on the host meanwhile is there, or of that kind."""
        before = self.host_where, self.host_kind
        self.host_where = before[0] if where is None else where
        self.host_kind = before[1] if kind is None else kind
        try:
            yield
        finally:
            self.host_where, self.host_kind = before

    def count_real(self, storage: torch.UntypedStorage) -> None:
        """A CPU tensor with data, which stands for what the run would hold there."""
        if self.open and storage.nbytes():
            setattr(storage, HOST_ATTRIBUTE, HostBlock(self.host, storage.nbytes(), PAGEABLE, self.host_kind))

    def shape_id(self, tensor: torch.Tensor) -> int:
        key = (tensor.dtype, tensor.shape)
        known = self._shape_ids.get(key)
        if known is None:
            text = f"{str(key[0]).removeprefix('torch.')}{list(key[1])}"
            known = self._shape_ids[key] = self.builder.intern_shape(text)
        return known

    def resize(self, block: Block, nbytes: int, tensor: torch.Tensor | None = None) -> None:
        """A storage that changes its size: new memory, to which the contents are copied, then the old is freed.
        `tensor` is what it is resized for."""
        old = block.block_id, block.address
        if block.device == GPU and block.ledger is self:
            kind = self.builder.kind_of(old[0]) if old[0] >= 0 else None
            self.use_card(block.card)
            block.block_id, block.address = self.allocate(nbytes, 0 if tensor is None else self.shape_id(tensor))
            if kind is not None and block.block_id >= 0:
                self.builder.set_kind(block.block_id, kind)
            if old[0] >= 0:
                self.release(*old)
        if block.host is not None or (block.device == HOST and not block.nbytes):
            block.host = HostBlock(self.host, nbytes, self.host_where, self.host_kind) if self.open and nbytes else None
        block.nbytes = nbytes
        block.values = block.recipe = None

    def transient(self, sizes: list[int]) -> None:
        """Memory a CUDA library takes inside one op and gives back before the op returns."""
        held = []
        try:
            for nbytes in sizes:
                block_id, address = self.allocate(nbytes)
                if block_id >= 0:
                    self.builder.set_kind(block_id, WORKSPACES)
                    held.append((block_id, address))
        finally:
            for block_id, address in reversed(held):
                self.release(block_id, address)

    def try_out(self, trial: Trial) -> None:
        """Memory that a library takes if there is room, and gives back at once."""
        with self._lock:
            self._busy = True
            try:
                try_out(self.allocator, trial, self.stream)
                self.mark(trial.label)
            finally:
                self._busy = False
            self._release_waiting()

    def keep_workspace(self, nbytes: int) -> tuple[int, int]:
        """Memory a CUDA library takes once and keeps until the process ends (cuBLAS)."""
        block_id, address = self.allocate(nbytes)
        if block_id >= 0:
            self.builder.set_kind(block_id, WORKSPACES)
            self.builder.set_module(block_id, self._no_module)  # whoever came first does not own it
        return block_id, address

    def close(self) -> None:
        """Tensors that outlive the context are no longer accounted."""
        self.open = False
