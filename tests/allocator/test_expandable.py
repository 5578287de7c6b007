"""expandable_segments: pages, growth, and what goes back."""

import pytest

from vramcast.allocator import AllocatorConf, CachingAllocator, OutOfMemory, SegmentEvent
from vramcast.allocator.constants import MIB


def allocator(conf: str = "", capacity_mib: int | None = None, **more) -> CachingAllocator:
    capacity = None if capacity_mib is None else capacity_mib * MIB
    text = ",".join(part for part in ("expandable_segments:True", conf) if part)
    return CachingAllocator(capacity, AllocatorConf.parse(text), **more)


def layout(a: CachingAllocator) -> list[list[tuple[float, bool]]]:
    return [[(block.size_bytes / MIB, block.allocated) for block in segment.blocks] for segment in a.segments()]


def watch(a: CachingAllocator) -> list[SegmentEvent]:
    seen: list[SegmentEvent] = []
    a.observe_segments(seen.append)
    return seen


@pytest.mark.parametrize(
    ("size", "mapped_mib"), [(1, 2), (1 * MIB, 2), (1 * MIB + 1, 20), (20 * MIB, 20), (21 * MIB, 40)]
)
def test_memory_comes_in_pages_of_2_and_20_mib(size: int, mapped_mib: int) -> None:
    a = allocator()
    a.malloc(size)
    assert a.reserved_bytes == mapped_mib * MIB


def test_large_segment_size_is_the_page() -> None:
    a = allocator("large_segment_size_mb:12")
    a.malloc(13 * MIB)
    assert a.reserved_bytes == 24 * MIB


def test_one_range_for_each_pool_and_stream() -> None:
    a = allocator()
    for size, stream in [(1, 0), (30 * MIB, 0), (50 * MIB, 0), (1, 3), (30 * MIB, 3), (2, 0)]:
        a.malloc(size, stream)
    assert len(a.address_ranges()) == 4
    assert {(segment.pool, segment.stream, segment.expandable) for segment in a.segments()} == {
        ("small", 0, True),
        ("large", 0, True),
        ("small", 3, True),
        ("large", 3, True),
    }


def test_the_range_holds_one_and_an_eighth_of_the_card() -> None:
    a = allocator(device_total_bytes=800 * MIB)
    a.malloc(1)
    a.malloc(30 * MIB)
    assert [size // MIB for _, size in a.address_ranges()] == [900, 900]
    a.malloc(860 * MIB)
    assert len(a.address_ranges()) == 2
    a.malloc(11 * MIB)  # 900 - 30 - 860 leaves 10
    assert len(a.address_ranges()) == 3


def test_the_end_of_the_segment_grows_by_what_is_missing() -> None:
    a = allocator()
    first = a.malloc(30 * MIB)
    events = watch(a)
    second = a.malloc(45 * MIB)
    assert second == first + 30 * MIB
    # 10 MiB were free behind the first, 35 more make two pages.
    assert [(event.action, event.address - first, event.size // MIB) for event in events] == [
        ("segment_map", 40 * MIB, 40)
    ]
    assert layout(a) == [[(30, True), (45, True), (5, False)]]


def test_blocks_are_split_to_the_last_512_bytes() -> None:
    a = allocator()
    a.malloc(20 * MIB - 512)
    assert [block.size_bytes for block in a.segments()[0].blocks] == [20 * MIB - 512, 512]


def test_a_block_that_can_grow_is_left_for_later() -> None:
    """Best fit counts the block at the end with all it can grow to, so a larger closed one is taken first."""
    a = allocator()
    first = a.malloc(50 * MIB)
    a.malloc(45 * MIB)  # [50][45][5 free | unmapped]
    a.free(first)
    assert a.malloc(3 * MIB) == first
    assert layout(a) == [[(3, True), (47, False), (45, True), (5, False)]]


def test_emptying_the_cache_gives_back_whole_pages_only() -> None:
    a = allocator()
    first, second = a.malloc(50 * MIB), a.malloc(50 * MIB)
    a.free(first)
    events = watch(a)
    a.empty_cache()
    assert [(event.action, event.address - first, event.size // MIB) for event in events] == [("segment_unmap", 0, 40)]
    assert layout(a) == [[(10, False), (50, True)]]
    assert a.segments()[0].address == first + 40 * MIB
    a.free(second)
    a.empty_cache()
    assert a.reserved_bytes == 0
    assert a.address_ranges() == []


def test_a_gap_is_mapped_again_before_the_end_grows() -> None:
    a = allocator()
    first, _ = a.malloc(60 * MIB), a.malloc(40 * MIB)
    a.free(first)
    a.empty_cache()
    assert a.reserved_bytes == 40 * MIB
    assert a.malloc(30 * MIB) == first
    assert a.reserved_bytes == 80 * MIB


def test_retry_maps_what_other_streams_gave_back() -> None:
    a = allocator(capacity_mib=100)
    a.free(a.malloc(60 * MIB, stream=1))
    events = watch(a)
    a.malloc(80 * MIB, stream=2)
    assert [(event.action, event.size // MIB, event.stream) for event in events] == [
        ("segment_unmap", 60, 1),
        ("segment_map", 80, 2),
    ]
    assert a.num_alloc_retries == 1


def test_a_full_card_fails_by_what_has_to_be_mapped() -> None:
    """Unlike the memory fraction, which counts the whole request although part of it is there already."""
    full = allocator(capacity_mib=60)
    full.free(full.malloc(40 * MIB))
    full.malloc(50 * MIB)
    assert full.num_alloc_retries == 0
    fraction = allocator(allowed_bytes=60 * MIB)
    fraction.free(fraction.malloc(40 * MIB))
    fraction.malloc(50 * MIB)
    assert fraction.num_alloc_retries == 1


def test_what_was_mapped_before_the_card_was_full_stays() -> None:
    a = allocator(capacity_mib=100)
    blocks = [a.malloc(20 * MIB) for _ in range(5)]
    a.free(blocks[1])
    a.free(blocks[3])
    a.empty_cache()  # [20][gap][20][gap][20]
    a.free(blocks[2])
    with pytest.raises(OutOfMemory):
        a.malloc(70 * MIB)
    assert a.num_ooms == 1
    a.malloc(60 * MIB)
    assert a.reserved_bytes == 100 * MIB


def test_the_memory_fraction_can_be_passed_by_a_page() -> None:
    """The check sees 11 MiB asked for, but a page of 20 is mapped."""
    a = allocator(allowed_bytes=12 * MIB)
    a.malloc(11 * MIB)
    assert a.reserved_bytes == 20 * MIB


def test_max_split_size_bars_large_free_blocks_that_cannot_grow() -> None:
    a = allocator("max_split_size_mb:40")
    large, _ = a.malloc(60 * MIB), a.malloc(20 * MIB)
    a.free(large)
    a.malloc(5 * MIB)
    assert a.reserved_bytes == 100 * MIB
    assert layout(a) == [[(60, False), (20, True), (5, True), (15, False)]]
