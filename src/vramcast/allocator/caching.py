"""PyTorch's CUDA caching allocator, replayed (c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.14)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from vramcast.allocator.blocks import Block, FreeList, Pool, Ranks, TieBreak
from vramcast.allocator.conf import AllocatorConf
from vramcast.allocator.constants import (
    DIRECT_REQUEST_BYTES,
    SEGMENT_ROUNDING_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    UNLIMITED,
)
from vramcast.allocator.device import DeviceMemory, SegmentEvent
from vramcast.allocator.errors import OutOfMemory
from vramcast.allocator.expandable import ExpandableSegments, expanded_bytes
from vramcast.allocator.private_pools import pool_of
from vramcast.allocator.snapshot import Segment, memory_stats, segments
from vramcast.base.errors import UsageError
from vramcast.base.torch_versions import WHOLE_CARD_IS_NO_LIMIT, version_of


class CachingAllocator:
    """Hands out addresses and keeps count exactly as torch's allocator would for the same calls.

    A private pool (of a CUDA graph, MemPool) is a part of the stream's number, see private_pools.

    Known limitations: one device; when another stream is done with a block (record_stream) is for the caller to say:
    `free_later`, then `free_awaited`.
    """

    def __init__(
        self,
        capacity_bytes: int | None = None,
        conf: AllocatorConf | None = None,
        *,
        allowed_bytes: int | None = None,
        device_total_bytes: int | None = None,
        torch_version: str = "2.11",
        address_of_segment: Callable[[int], int] | None = None,
    ) -> None:
        """
        capacity_bytes: what the driver can give in all; cudaMalloc fails beyond it. None: no end.
        allowed_bytes: the limit of set_per_process_memory_fraction, checked before the driver is asked.
        device_total_bytes: the card's memory as torch reports it; needed for a memory fraction, and it sets how many
            addresses an expandable segment has.
        torch_version: whose rules to follow (which of two equal blocks goes first, what a whole fraction means).
        address_of_segment: where the next segment (or the address range of an expandable one) lies.
        """
        tie_break = TieBreak.of_torch(torch_version)
        self._version = version_of(torch_version)
        self._device = DeviceMemory(capacity_bytes, address_of_segment)
        self._ranks = Ranks(tie_break)
        self._small = Pool(is_small=True, tie_break=tie_break)
        self._large = Pool(is_small=False, tie_break=tie_break)
        self._expandable = ExpandableSegments(self._device, self._ranks, device_total_bytes)
        self._live: dict[int, Block] = {}
        self._awaited: dict[int, Block] = {}
        self._awaited_bytes = 0
        self._given_up: set[int] = set()
        """Private pools whose owners are gone."""
        self._device_total_bytes = device_total_bytes

        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self.requested_bytes = 0
        self.peak_requested_bytes = 0
        self.total_allocated_bytes = 0
        """Everything ever allocated."""
        self.total_requested_bytes = 0
        self.num_mallocs = 0
        self.peak_allocations = 0
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_oom_rejections = 0
        self.num_sync_all_streams = 0

        self._allowed_bytes = allowed_bytes
        self.set_conf(conf or AllocatorConf())
        if self.conf.per_process_memory_fraction < 1.0 and allowed_bytes is None:
            self.set_memory_fraction(self.conf.per_process_memory_fraction)

    # --- settings -----------------------------------------------------------------------------------------------

    def set_conf(self, conf: AllocatorConf) -> None:
        """Change the settings on the way, as torch.cuda.memory._set_allocator_settings does."""
        self.conf = conf
        self._rounds_plainly = not any(conf.roundup_power2_divisions)
        # A large block is split when enough is left for a large request; an expandable one as far as it goes.
        self._large_remainder = 0 if conf.expandable_segments else SMALL_REQUEST_BYTES
        self._split_below = UNLIMITED if conf.expandable_segments else conf.max_split_bytes
        self._expandable.large_page_bytes = conf.large_segment_bytes
        total = self._device_total_bytes
        self._reject_above_bytes = UNLIMITED if total is None else int(conf.per_process_memory_fraction * total)
        self._settings_changed()

    def set_capacity(self, capacity_bytes: int | None) -> None:
        """Change what the driver can give; what is reserved already stays."""
        self._device.capacity_bytes = capacity_bytes

    def set_allowed(self, allowed_bytes: int | None) -> None:
        """Change the limit that set_per_process_memory_fraction sets."""
        self._allowed_bytes = allowed_bytes
        self._settings_changed()

    def set_memory_fraction(self, fraction: float) -> None:
        """torch.cuda.set_per_process_memory_fraction."""
        if fraction >= 1.0 and self._version >= WHOLE_CARD_IS_NO_LIMIT:
            self.set_allowed(None)
        elif self._device_total_bytes is None:
            raise UsageError("a memory fraction needs the card's total memory (device_total_bytes)")
        else:
            self.set_allowed(int(fraction * self._device_total_bytes))

    def _settings_changed(self) -> None:
        conf = self.conf
        self._collects_garbage = self._allowed_bytes is not None and conf.garbage_collection_threshold > 0.0
        self._searches_plainly = not (
            conf.expandable_segments
            or self._expandable.segments
            or self._collects_garbage
            or conf.max_split_bytes != UNLIMITED
        )

    # --- the two calls ------------------------------------------------------------------------------------------

    def malloc(self, size_bytes: int, stream: int = 0) -> int:
        """Allocate and return the address; nothing is allocated for 0 bytes, and the address is 0."""
        if size_bytes <= 0:
            if size_bytes < 0:
                raise ValueError(f"cannot allocate {size_bytes} bytes")
            return 0
        size = size_bytes + 511 & -512 if self._rounds_plainly else self.conf.round_bytes(size_bytes)
        if size <= SMALL_REQUEST_BYTES:
            pool = self._small
            remainder = 0
        else:
            pool = self._large
            remainder = self._large_remainder
        try:
            free_list = pool.by_stream[stream]
        except KeyError:
            free_list = pool.add_stream(stream)

        if self._searches_plainly:
            keys = free_list.keys
            i = bisect_left(keys, size << free_list.key_shift)
            if i < len(keys):
                block = free_list.blocks.pop(keys.pop(i))
                block.free = False
            else:
                block = self._grow(free_list, size, size_bytes)
        else:
            block = self._search(free_list, size) or self._grow(free_list, size, size_bytes)

        left = block.size - size
        if left > remainder and size < self._split_below:
            # The front becomes a block of its own, the block that was found keeps the rest.
            rest = block
            rank = rest.rank if self._ranks.inherited else self._ranks.of_segment()
            address = rest.address
            block = Block(free_list, address, size, rank, rest.expandable)
            block.prev = before = rest.prev
            if before is not None:
                before.next = block
            block.next = rest
            rest.prev = block
            rest.address = address + size
            rest.size = left
            rest.free = True
            rest.gc_base = pool.searches
            key = rest.key = left << free_list.key_shift | rest.rank | address + size
            free_list.blocks[key] = rest
            insort(free_list.keys, key)
        else:
            address = block.address
            size = block.size

        block.requested = size_bytes
        live = self._live
        live[address] = block
        if len(live) > self.peak_allocations:
            self.peak_allocations = len(live)
        self.num_mallocs += 1
        self.total_allocated_bytes += size
        self.total_requested_bytes += size_bytes
        self.allocated_bytes = allocated = self.allocated_bytes + size
        if allocated > self.peak_allocated_bytes:
            self.peak_allocated_bytes = allocated
        self.requested_bytes = requested = self.requested_bytes + size_bytes
        if requested > self.peak_requested_bytes:
            self.peak_requested_bytes = requested
        return address

    def free(self, address: int) -> None:
        """Return a block to its pool and merge it with its free neighbours (free, free_block)."""
        block = self._live.pop(address, None)
        if block is None:
            if address == 0:
                return
            raise ValueError(f"no allocation at address {address:#x}")
        self.allocated_bytes -= block.size
        self.requested_bytes -= block.requested
        block.requested = 0
        free_list = block.free_list
        keys = free_list.keys
        before = block.prev
        if before is not None and before.free:
            key = before.key
            del free_list.blocks[key]
            del keys[bisect_left(keys, key)]
            block.address = address = before.address
            block.size += before.size
            block.prev = before = before.prev
            if before is not None:
                before.next = block
        after = block.next
        if after is not None and after.free:
            key = after.key
            del free_list.blocks[key]
            del keys[bisect_left(keys, key)]
            block.size += after.size
            block.next = after = after.next
            if after is not None:
                after.prev = block
        block.free = True
        block.gc_base = free_list.pool.searches
        key = block.key = block.size << free_list.key_shift | block.rank | address
        free_list.blocks[key] = block
        insort(keys, key)

    def free_later(self, address: int) -> None:
        """The program frees a block that another stream may still use: it counts no longer, and waits for that."""
        block = self._live.pop(address)
        self.allocated_bytes -= block.size
        self.requested_bytes -= block.requested
        block.requested = 0
        self._awaited[address] = block
        self._awaited_bytes += block.size

    def free_awaited(self, address: int) -> None:
        """The other stream is done with a block of `free_later`."""
        block = self._awaited.pop(address)
        self._awaited_bytes -= block.size
        self._live[address] = block
        self.allocated_bytes += block.size
        self.free(address)

    def driver_event(self, name: str) -> None:
        """One of DRIVER_EVENTS has happened: where later segments lie depends on it."""
        self._device.driver_event(name)

    def give_up_pool(self, pool: int, *, at_once: bool) -> None:
        """The owner of a private pool is gone; what is unused in it is given back now, or when the cache is emptied."""
        self._given_up.add(pool)
        if at_once:
            self._give_back(lambda stream: pool_of(stream) == pool)

    def empty_cache(self) -> None:
        """Give back every segment, and every page of an expandable one, that nothing is allocated on."""
        self.num_sync_all_streams += 1
        self._give_back(lambda stream: not (pool := pool_of(stream)) or pool in self._given_up)

    def _give_back(self, wanted: Callable[[int], bool]) -> None:
        for pool in (self._large, self._small):
            on_pages: list[Block] = []
            for block in pool.free_blocks(wanted):
                if block.expandable is not None:
                    on_pages.append(block)
                elif not block.is_split:
                    self._release(block)
            for block in on_pages:
                self._expandable.unmap(block)
        self._settings_changed()

    # --- finding memory -----------------------------------------------------------------------------------------

    def _search(self, free_list: FreeList, size: int) -> Block | None:
        """The best fit among the free blocks (get_free_block)."""
        if self._collects_garbage:
            free_list.pool.searches += 1
        keys, blocks = free_list.keys, free_list.blocks
        i = bisect_left(keys, size << free_list.key_shift)
        count = len(keys)
        if i == count:
            return None
        block = blocks[keys[i]]
        if block.expandable is not None:
            if self.conf.expandable_segments:
                # A block that can grow counts with what it can grow to, so as to leave it for larger requests.
                while block.expandable is not None and i + 1 < count:
                    larger = blocks[keys[i + 1]]
                    if expanded_bytes(larger) >= expanded_bytes(block):
                        break
                    block = larger
                    i += 1
            else:
                while block.expandable is not None:
                    i += 1
                    if i == count:
                        return None
                    block = blocks[keys[i]]
        limit = self.conf.max_split_bytes
        if size < limit:
            if block.size >= limit:
                return None
        elif block.size >= size + self.conf.max_non_split_rounding_bytes:
            return None
        del blocks[keys.pop(i)]
        block.free = False
        return block

    def _grow(self, free_list: FreeList, size: int, requested_bytes: int) -> Block:
        """Get new memory from the driver, giving back unused memory where that is what it takes (malloc)."""
        segment_bytes = self._segment_bytes(size)
        if self._collects_garbage:
            self._collect_garbage()
        block = self._new_block(free_list, size, segment_bytes, requested_bytes)
        if block is None and self._release_oversize(free_list, size):
            block = self._new_block(free_list, size, segment_bytes, requested_bytes)
        if block is None:
            self.empty_cache()
            self.num_alloc_retries += 1
            block = self._new_block(free_list, size, segment_bytes, requested_bytes)
        if block is None:
            self.num_ooms += 1
            raise self._out_of_memory(requested_bytes, size, segment_bytes)
        return block

    def _segment_bytes(self, size: int) -> int:
        """What is asked of the driver for a request of this size (get_allocation_size)."""
        if size <= SMALL_REQUEST_BYTES:
            return SMALL_SEGMENT_BYTES
        if size < DIRECT_REQUEST_BYTES:
            return self.conf.large_segment_bytes
        return -(-size // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES

    def _new_block(self, free_list: FreeList, size: int, segment_bytes: int, requested_bytes: int) -> Block | None:
        """A block on new memory (alloc_block); None where there is too little."""
        wanted = self._device.reserved_bytes + segment_bytes
        if self._allowed_bytes is not None and wanted > self._allowed_bytes:
            return None
        if self.conf.throw_on_cudamalloc_oom and wanted > self._reject_above_bytes:
            # This option gives up at once, without giving cached memory back first.
            self.num_oom_rejections += 1
            raise self._out_of_memory(requested_bytes, size, segment_bytes)
        if self.conf.expandable_segments:
            return self._expandable.allocate(free_list, size)
        address = self._device.malloc(segment_bytes, free_list.stream)
        if address is None:
            return None
        return Block(free_list, address, segment_bytes, self._ranks.of_segment())

    def _out_of_memory(self, requested_bytes: int, size: int, segment_bytes: int) -> OutOfMemory:
        return OutOfMemory(
            requested_bytes=requested_bytes,
            rounded_bytes=size,
            segment_bytes=segment_bytes,
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=self._device.reserved_bytes,
            capacity_bytes=self._device.capacity_bytes,
            allowed_bytes=self._allowed_bytes,
        )

    # --- giving memory back -------------------------------------------------------------------------------------

    def _release(self, block: Block) -> None:
        block.free_list.remove(block)
        self._device.free(block.address, block.size, block.free_list.stream)

    def _collect_garbage(self) -> None:
        """Give back large segments that have not been used for long (garbage_collect_cached_blocks)."""
        assert self._allowed_bytes is not None
        threshold = int(self.conf.garbage_collection_threshold * self._allowed_bytes)
        to_reclaim = self._device.reserved_bytes - threshold
        if to_reclaim <= 0:
            return
        searches = self._large.searches
        whole = [block for block in self._large.free_blocks(lambda stream: not pool_of(stream)) if not block.is_split]
        total_age, count = sum(searches - block.gc_base for block in whole), len(whole)
        reclaimed, released_some = 0, True
        while reclaimed < to_reclaim and released_some and count > 0:
            released_some = False
            least_age = total_age / count
            for block in whole:
                age = searches - block.gc_base
                if block.free and block.expandable is None and age >= least_age:
                    released_some = True
                    reclaimed += block.size
                    total_age -= age
                    count -= 1
                    self._release(block)

    def _release_oversize(self, free_list: FreeList, size: int) -> bool:
        """Give back cached blocks above max_split_size until the request would fit (release_available_cached_blocks).

        True if enough was given back.
        """
        limit = self.conf.max_split_bytes
        if limit == UNLIMITED:
            return False
        size = max(size, limit)
        blocks = list(free_list)
        i = bisect_left(free_list.keys, size << free_list.key_shift)
        if i < len(blocks) and blocks[i].expandable is None:
            self._release(blocks[i])
            return True
        released = 0
        for block in reversed(blocks[:i]):
            if released >= size or block.size < limit:
                break
            if block.expandable is None:
                released += block.size
                self._release(block)
        return released >= size

    # --- what to read -------------------------------------------------------------------------------------------

    @property
    def capacity_bytes(self) -> int | None:
        return self._device.capacity_bytes

    @property
    def allowed_bytes(self) -> int | None:
        return self._allowed_bytes

    @property
    def largest_available_bytes(self) -> int | None:
        """The largest block that is cached or that the driver could still give (cacheInfo); None: no end."""
        if self.capacity_bytes is None:
            return None
        cached = (block.size_bytes for segment in self.segments() for block in segment.blocks if not block.allocated)
        return max(self.capacity_bytes - self.reserved_bytes, *cached, 0)

    @property
    def reserved_bytes(self) -> int:
        return self._device.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        return self._device.peak_reserved_bytes

    @property
    def active_bytes(self) -> int:
        """Allocated, or freed but still in use by another stream."""
        return self.allocated_bytes + self._awaited_bytes

    def reset_peaks(self) -> None:
        """torch.cuda.reset_peak_memory_stats."""
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_requested_bytes = self.requested_bytes
        self.peak_allocations = len(self._live)
        self._device.peak_reserved_bytes = self._device.reserved_bytes
        self._device.peak_segments = self._device.num_segments

    def observe_segments(self, observer: Callable[[SegmentEvent], None] | None) -> None:
        """Call this for every change of reserved memory."""
        self._device.observer = observer

    def address_ranges(self) -> list[tuple[int, int]]:
        """The (address, size) of every expandable segment, mapped or not."""
        return [(segment.address, segment.size) for segment in self._expandable.segments]

    def segments(self) -> list[Segment]:
        """Every segment with its blocks, by address; mapped ranges of an expandable segment are one each."""
        return segments(self._blocks())

    def memory_stats(self) -> dict[str, int]:
        """What torch.cuda.memory_stats would say, under the same keys."""
        return memory_stats(self, self._device, self._blocks())

    def _blocks(self) -> list[Block]:
        return [*self._live.values(), *self._awaited.values(), *self._small.free_blocks(), *self._large.free_blocks()]
