"""Expandable segments: address ranges larger than the card, backed by memory page by page."""

from __future__ import annotations

from vramcast.allocator.blocks import Block, ExpandableSegment, FreeList, Ranks
from vramcast.allocator.constants import SMALL_SEGMENT_BYTES
from vramcast.allocator.device import DeviceMemory

UNKNOWN_CARD_BYTES = 1 << 40
"""The card's memory where it was not given: more than any card has, so that a range never ends."""


class ExpandableSegments:
    """Maps and unmaps pages. A segment is a chain of blocks that ends in an unmapped one until the range is full."""

    def __init__(self, device: DeviceMemory, ranks: Ranks, device_total_bytes: int | None) -> None:
        self._device = device
        self._ranks = ranks
        # torch reserves addresses for 1 1/8 of the card's memory (ExpandableSegment's constructor).
        total = device_total_bytes or device.capacity_bytes or UNKNOWN_CARD_BYTES
        self._range_bytes = total + total // 8
        self.segments: list[ExpandableSegment] = []
        """The segments whose addresses are reserved."""
        self.large_page_bytes = 0
        """Set by the owner: it follows the configuration."""

    def allocate(self, free_list: FreeList, size: int) -> Block | None:
        """Map as much as a block of this size needs at the lowest address (try_allocate_expandable_block).

        None means that the card had too little; what was mapped until then stays.
        """
        block = self._find(free_list, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            unmapped = block.next
            assert unmapped is not None  # _find saw that there is room
            if not self._map(unmapped, min(size - block.size, unmapped.size)):
                return None
            block = unmapped
        free_list.remove(block)
        return block

    def unmap(self, block: Block) -> None:
        """Give back the whole pages inside a free block (unmap_block), and the range once nothing is left on it."""
        segment = block.expandable
        assert segment is not None
        page = segment.page_bytes
        offset = block.address - segment.address
        start = segment.address + -(-offset // page) * page
        end = segment.address + (offset + block.size) // page * page
        if start < end:
            self._cut_out(block, start, end)
        if not block.is_split and not block.mapped:
            block.free_list.remove_unmapped(block)
            self._device.release_addresses(segment.address, segment.size)
            self.segments.remove(segment)

    def _cut_out(self, block: Block, start: int, end: int) -> None:
        free_list = block.free_list
        free_list.remove(block)
        before_bytes = start - block.address
        after_bytes = block.address + block.size - end
        if before_bytes:
            before = self._piece(block, block.address, before_bytes)
            before.insert_between(block.prev, block)
            free_list.add(before)
        if after_bytes:
            after = self._piece(block, end, after_bytes)
            after.insert_between(block, block.next)
            free_list.add(after)
        block.address, block.size, block.mapped = start, end - start, False
        block.absorb(block.prev)
        block.absorb(block.next)
        free_list.add_unmapped(block)
        self._device.unmap(start, end - start, free_list.stream)

    def _find(self, free_list: FreeList, size: int) -> Block:
        """The lowest free or unmapped block from which on there are addresses enough (find_expandable_block)."""
        for address in free_list.unmapped_addresses:
            block = free_list.unmapped[address]
            if block.prev is not None and not block.prev.allocated:
                block = block.prev
            if _has_room(block, size):
                return block
        return self._new_range(free_list, size)

    def _new_range(self, free_list: FreeList, needed: int) -> Block:
        """A block larger than the card is met only without a limit, when what a run would need is asked."""
        page = SMALL_SEGMENT_BYTES if free_list.pool.is_small else self.large_page_bytes
        size = -(-max(self._range_bytes, needed) // page) * page
        address = self._device.reserve_addresses(size)
        segment = ExpandableSegment(address, size, page)
        block = Block(free_list, address, size, self._ranks.of_segment(), segment, mapped=False)
        free_list.add_unmapped(block)
        self.segments.append(segment)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Map the beginning of an unmapped block and make it free (map_block)."""
        segment = block.expandable
        assert segment is not None
        free_list = block.free_list
        address = block.address
        mapped_bytes = -(-size // segment.page_bytes) * segment.page_bytes
        if not self._device.map(address, mapped_bytes, free_list.stream):
            return False
        free_list.remove_unmapped(block)
        block.mapped = True
        if mapped_bytes < block.size:
            rest = self._piece(block, address + mapped_bytes, block.size - mapped_bytes)
            rest.mapped = False
            rest.insert_between(block, block.next)
            free_list.add_unmapped(rest)
            block.size = mapped_bytes
        block.absorb(block.prev)
        block.absorb(block.next)
        free_list.add(block)
        return True

    def _piece(self, block: Block, address: int, size: int) -> Block:
        return Block(block.free_list, address, size, self._ranks.from_block(block), block.expandable)


def _has_room(block: Block | None, size: int) -> bool:
    room = 0
    while room < size and block is not None and not block.allocated:
        room += block.size
        block = block.next
    return room >= size


def expanded_bytes(block: Block) -> int:
    """A free block's size together with the unmapped range behind it: what it can grow to."""
    after = block.next
    return block.size + after.size if after is not None and not after.mapped else block.size
