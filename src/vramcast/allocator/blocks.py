"""Blocks, the ordered lists of free ones, and the two pools."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from enum import Enum

from vramcast.base.torch_versions import version_of

ADDRESS_BITS = 48
"""Device addresses lie below 2**47 on x86-64, and AddressSpace stays below 2**48."""

COUNTER_BITS = 40
"""Room for the creation counters of torch 2.12 and later."""


class TieBreak(Enum):
    """Which of two free blocks of one size is taken first. It changed from version to version.

    torch up to 2.11 compares addresses (BlockComparatorSize); 2.12 the order in which block objects were made
    (BlockComparatorRegistrationCounter); 2.13 and 2.14 the order in which segments were made, then addresses
    (BlockComparatorSizeCounterAddress). The names are those of c10/cuda/CUDACachingAllocator.cpp.
    """

    ADDRESS = "address"
    BLOCK_ORDER = "block order"
    SEGMENT_ORDER = "segment order"

    @classmethod
    def of_torch(cls, version: str) -> TieBreak:
        """The rule of a torch version such as "2.11.0+cu130"."""
        number = version_of(version)
        if number < (2, 12):
            return cls.ADDRESS
        return cls.BLOCK_ORDER if number == (2, 12) else cls.SEGMENT_ORDER


class Ranks:
    """Creation counters as TieBreak asks for them, shifted above an address."""

    __slots__ = ("_last", "_step", "inherited")

    def __init__(self, tie_break: TieBreak) -> None:
        self.inherited = tie_break is not TieBreak.BLOCK_ORDER
        """Whether a block made from another one keeps its rank."""
        self._step = 0 if tie_break is TieBreak.ADDRESS else 1 << ADDRESS_BITS
        self._last = 0

    def of_segment(self) -> int:
        """The rank of a block on newly obtained memory."""
        self._last += self._step
        return self._last

    def from_block(self, block: Block) -> int:
        """The rank of a block made from part of another one."""
        return block.rank if self.inherited else self.of_segment()


class ExpandableSegment:
    """A reserved range of addresses that is mapped page by page."""

    __slots__ = ("address", "page_bytes", "size")

    def __init__(self, address: int, size: int, page_bytes: int) -> None:
        self.address = address
        self.size = size
        self.page_bytes = page_bytes


class Block:
    """A range of a segment. It is allocated, free, or, in an expandable segment, not backed by memory."""

    __slots__ = (
        "address",
        "expandable",
        "free",
        "free_list",
        "gc_base",
        "key",
        "mapped",
        "next",
        "prev",
        "rank",
        "requested",
        "size",
    )

    key: int
    """What it is filed under while free."""
    gc_base: int
    """Its pool's search count when it was filed: the difference to now is its age for garbage collection."""

    def __init__(
        self,
        free_list: FreeList,
        address: int,
        size: int,
        rank: int,
        expandable: ExpandableSegment | None = None,
        mapped: bool = True,
    ) -> None:
        self.free_list = free_list
        self.address = address
        self.size = size
        self.rank = rank
        self.expandable = expandable
        self.mapped = mapped
        self.free = False
        self.requested = 0
        self.prev: Block | None = None
        self.next: Block | None = None

    @property
    def allocated(self) -> bool:
        return self.mapped and not self.free

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None

    def insert_between(self, before: Block | None, after: Block | None) -> None:
        self.prev, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.prev = self

    def absorb(self, neighbour: Block | None) -> None:
        """Take over a free neighbour, or an unmapped one if this is unmapped too (try_merge_blocks)."""
        if neighbour is None or neighbour.allocated or neighbour.mapped is not self.mapped:
            return
        if neighbour.mapped:
            self.free_list.remove(neighbour)
        else:
            self.free_list.remove_unmapped(neighbour)
        self.size += neighbour.size
        if neighbour is self.prev:
            self.address = neighbour.address
            self.prev = before = neighbour.prev
            if before is not None:
                before.next = self
        else:
            self.next = after = neighbour.next
            if after is not None:
                after.prev = self


class FreeList:
    """The free blocks of one pool and one stream, smallest first, and its unmapped ranges by address.

    A block's key is one integer, size above rank above address, so that a single bisection of a flat list finds the
    best fit with its tie broken.
    """

    __slots__ = ("blocks", "key_shift", "keys", "pool", "stream", "unmapped", "unmapped_addresses")

    def __init__(self, pool: Pool, stream: int) -> None:
        self.pool = pool
        self.stream = stream
        self.key_shift = pool.key_shift
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped_addresses: list[int] = []
        self.unmapped: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        block.free = True
        block.gc_base = self.pool.searches
        key = block.key = block.size << self.key_shift | block.rank | block.address
        self.blocks[key] = block
        insort(self.keys, key)

    def remove(self, block: Block) -> None:
        block.free = False
        key = block.key
        del self.blocks[key]
        keys = self.keys
        del keys[bisect_left(keys, key)]

    def add_unmapped(self, block: Block) -> None:
        self.unmapped[block.address] = block
        insort(self.unmapped_addresses, block.address)

    def remove_unmapped(self, block: Block) -> None:
        del self.unmapped[block.address]
        del self.unmapped_addresses[bisect_left(self.unmapped_addresses, block.address)]

    def __iter__(self) -> Iterator[Block]:
        """The free blocks in order, as they are now: the list may change meanwhile."""
        blocks = self.blocks
        return iter([blocks[key] for key in self.keys])


class Pool:
    """The small or the large pool."""

    __slots__ = ("by_stream", "is_small", "key_shift", "searches")

    def __init__(self, *, is_small: bool, tie_break: TieBreak) -> None:
        self.is_small = is_small
        self.key_shift = ADDRESS_BITS if tie_break is TieBreak.ADDRESS else ADDRESS_BITS + COUNTER_BITS
        self.by_stream: dict[int, FreeList] = {}
        self.searches = 0
        """Searches made while garbage collection is on (get_free_blocks_call_count)."""

    def add_stream(self, stream: int) -> FreeList:
        free_list = FreeList(self, stream)
        # torch keeps the blocks of all streams in one set, ordered by the stream's handle first.
        self.by_stream = dict(sorted([*self.by_stream.items(), (stream, free_list)]))
        return free_list

    def free_blocks(self, of_stream: Callable[[int], bool] = lambda stream: True) -> list[Block]:
        """Every free block of these streams, in the order torch walks them."""
        return [block for stream, blocks in self.by_stream.items() if of_stream(stream) for block in blocks]
