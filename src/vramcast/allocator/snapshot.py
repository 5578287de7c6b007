"""What can be read off an allocator: its segments, and torch's statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from vramcast.allocator.blocks import Block
    from vramcast.allocator.caching import CachingAllocator
    from vramcast.allocator.device import DeviceMemory


@dataclass(frozen=True, slots=True)
class BlockInfo:
    address: int
    size_bytes: int
    requested_bytes: int
    """What the caller asked for; 0 when free."""
    allocated: bool


@dataclass(frozen=True, slots=True)
class Segment:
    address: int
    size_bytes: int
    pool: Literal["small", "large"]
    stream: int
    expandable: bool
    blocks: tuple[BlockInfo, ...]

    @property
    def allocated_bytes(self) -> int:
        return sum(block.size_bytes for block in self.blocks if block.allocated)


def segments(blocks: Iterable[Block]) -> list[Segment]:
    """Group mapped blocks into the ranges they tile, as torch's snapshot does."""
    mapped: list[Segment] = []
    for head in blocks:
        if head.prev is not None and head.prev.mapped:
            continue
        infos: list[BlockInfo] = []
        block: Block | None = head
        while block is not None and block.mapped:
            infos.append(BlockInfo(block.address, block.size, block.requested, block.allocated))
            block = block.next
        mapped.append(
            Segment(
                address=head.address,
                size_bytes=sum(info.size_bytes for info in infos),
                pool="small" if head.free_list.pool.is_small else "large",
                stream=head.free_list.stream,
                expandable=head.expandable is not None,
                blocks=tuple(infos),
            )
        )
    return sorted(mapped, key=lambda segment: segment.address)


def memory_stats(allocator: CachingAllocator, device: DeviceMemory, blocks: list[Block]) -> dict[str, int]:
    """torch.cuda.memory_stats: totals with their history, and for each pool what is there now."""
    stats: dict[str, int] = {}
    _history(
        stats,
        "allocated_bytes",
        allocator.allocated_bytes,
        allocator.peak_allocated_bytes,
        allocator.total_allocated_bytes,
    )
    _history(
        stats,
        "active_bytes",
        allocator.active_bytes,
        allocator.peak_allocated_bytes,
        allocator.total_allocated_bytes,
    )
    _history(
        stats,
        "requested_bytes",
        allocator.requested_bytes,
        allocator.peak_requested_bytes,
        allocator.total_requested_bytes,
    )
    _history(
        stats,
        "reserved_bytes",
        device.reserved_bytes,
        device.peak_reserved_bytes,
        device.total_reserved_bytes,
    )
    _history(stats, "segment", device.num_segments, device.peak_segments, device.total_segments)
    now = {"all": [0] * 9, "small_pool": [0] * 9, "large_pool": [0] * 9}
    for block in blocks:
        added = _counts(block)
        for pool in ("all", "small_pool" if block.free_list.pool.is_small else "large_pool"):
            now[pool] = [a + b for a, b in zip(now[pool], added, strict=True)]
    for pool, counts in now.items():
        for name, count in zip(_COUNTED, counts, strict=True):
            stats[f"{name}.{pool}.current"] = count
    for name in ("allocation", "active"):
        _history(stats, name, stats["allocation.all.current"], allocator.peak_allocations, allocator.num_mallocs)
    limit = allocator.conf.max_split_bytes
    stats["oversize_allocations.current"] = sum(block.allocated and block.size >= limit for block in blocks)
    stats["oversize_segments.current"] = sum(
        not segment.expandable and segment.size_bytes >= limit for segment in segments(blocks)
    )
    stats["max_split_size"] = limit if limit < 2**63 else -1
    stats["num_alloc_retries"] = allocator.num_alloc_retries
    stats["num_ooms"] = allocator.num_ooms
    stats["num_oom_rejections"] = allocator.num_oom_rejections
    stats["num_sync_all_streams"] = allocator.num_sync_all_streams
    stats["num_device_alloc"] = device.num_allocs
    stats["num_device_free"] = device.num_frees
    return stats


def _history(stats: dict[str, int], name: str, current: int, peak: int, total: int) -> None:
    stats[f"{name}.all.current"] = current
    stats[f"{name}.all.peak"] = peak
    stats[f"{name}.all.allocated"] = total
    stats[f"{name}.all.freed"] = total - current


_COUNTED = (
    "allocation",
    "allocated_bytes",
    "active",
    "active_bytes",
    "requested_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "reserved_bytes",
    "segment",
)


def _counts(block: Block) -> tuple[int, ...]:
    """What one mapped block adds to each of _COUNTED.

    torch leaves expandable segments out of its counts of segments and of inactive splits.
    """
    used = int(block.allocated)
    used_bytes = block.size if used else 0
    idle_split = int(not used and block.expandable is None and block.is_split)
    head = int(block.prev is None and block.expandable is None)
    return (
        used,
        used_bytes,
        used,
        used_bytes,
        block.requested,
        idle_split,
        block.size if idle_split else 0,
        block.size,
        head,
    )
