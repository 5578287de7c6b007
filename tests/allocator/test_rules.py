"""One test for each rule of c10/cuda/CUDACachingAllocator.cpp."""

import pytest

from vramcast.allocator import AllocatorConf, CachingAllocator, OutOfMemory, SegmentEvent
from vramcast.allocator.constants import MIB
from vramcast.errors import UsageError


def allocator(conf: str = "", capacity_mib: int | None = None, **more) -> CachingAllocator:
    capacity = None if capacity_mib is None else capacity_mib * MIB
    return CachingAllocator(capacity, AllocatorConf.parse(conf), **more)


def reserved_mib(a: CachingAllocator) -> float:
    return a.reserved_bytes / MIB


def layout(a: CachingAllocator) -> list[list[tuple[float, bool]]]:
    """Each segment as its blocks: (MiB, allocated)."""
    return [[(block.size_bytes / MIB, block.allocated) for block in segment.blocks] for segment in a.segments()]


def watch(a: CachingAllocator) -> list[SegmentEvent]:
    seen: list[SegmentEvent] = []
    a.observe_segments(seen.append)
    return seen


# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "segment_mib"),
    [
        (1, 2),
        (1 * MIB, 2),
        (1 * MIB + 1, 20),
        (10 * MIB - 512, 20),
        (10 * MIB, 10),
        (10 * MIB + 1, 12),
        (33 * MIB, 34),
    ],
)
def test_segment_for_a_first_request(size: int, segment_mib: int) -> None:
    a = allocator()
    a.malloc(size)
    assert reserved_mib(a) == segment_mib


def test_large_segment_size_replaces_the_20_mib() -> None:
    a = allocator("large_segment_size_mb:32")
    a.malloc(3 * MIB)
    assert reserved_mib(a) == 32


def test_nothing_is_allocated_for_no_bytes() -> None:
    a = allocator()
    assert a.malloc(0) == 0
    a.free(0)
    assert a.reserved_bytes == a.allocated_bytes == 0


def test_counts_are_of_blocks_not_of_requests() -> None:
    a = allocator()
    a.malloc(700)
    assert (a.allocated_bytes, a.active_bytes, a.requested_bytes) == (1024, 1024, 700)


# --- choosing a block -----------------------------------------------------------------------------------------------


def test_smallest_block_that_fits() -> None:
    a = allocator()
    large, small = a.malloc(60 * MIB), a.malloc(40 * MIB)
    a.free(large)
    a.free(small)
    assert a.malloc(30 * MIB) == small
    assert reserved_mib(a) == 100


def test_small_and_large_requests_do_not_share() -> None:
    a = allocator()
    a.free(a.malloc(50 * MIB))
    a.malloc(1 * MIB)
    assert [segment.pool for segment in a.segments()] == ["large", "small"]


def test_a_block_serves_its_own_stream_only() -> None:
    a = allocator()
    first = a.malloc(50 * MIB, stream=1)
    a.free(first)
    assert a.malloc(50 * MIB, stream=2) != first
    assert a.malloc(50 * MIB, stream=1) == first
    assert reserved_mib(a) == 100


def _three_equal_blocks(version: str, addresses: list[int]) -> tuple[CachingAllocator, list[int]]:
    places = iter(addresses)
    a = CachingAllocator(torch_version=version, address_of_segment=lambda size: next(places))
    blocks = [a.malloc(20 * MIB) for _ in addresses]
    for block in blocks:
        a.free(block)
    return a, blocks


@pytest.mark.parametrize(("version", "taken"), [("2.11.0+cu130", 1), ("2.12.1", 0), ("2.13.0", 0), ("2.14.1", 0)])
def test_tie_between_segments(version: str, taken: int) -> None:
    """2.11 takes the lowest address, later versions the segment that was made first."""
    a, blocks = _three_equal_blocks(version, [0x7F0050000000, 0x7F0010000000, 0x7F0090000000])
    assert a.malloc(20 * MIB) == blocks[taken]


@pytest.mark.parametrize(("version", "taken"), [("2.11.0", 0), ("2.12.0", 4), ("2.13.0", 0), ("2.14.0", 0)])
def test_tie_within_a_segment(version: str, taken: int) -> None:
    """2.12 goes by the age of the block object, and the last block of a segment is the one it began with."""
    a = CachingAllocator(torch_version=version)
    blocks = [a.malloc(4 * MIB) for _ in range(5)]
    a.free(blocks[0])
    a.free(blocks[4])
    assert a.malloc(4 * MIB) == blocks[taken]


# --- splitting and merging ------------------------------------------------------------------------------------------


def test_small_blocks_are_split_down_to_512_bytes() -> None:
    a = allocator()
    a.malloc(1 * MIB)
    a.malloc(1 * MIB - 512)
    assert [block.size_bytes for block in a.segments()[0].blocks] == [MIB, MIB - 512, 512]


@pytest.mark.parametrize(("request_mib", "split"), [(18, True), (19, False), (20, False)])
def test_large_blocks_are_split_when_more_than_1_mib_is_left(request_mib: int, split: bool) -> None:
    a = allocator()
    a.free(a.malloc(2 * MIB))  # leaves a free segment of 20 MiB
    a.malloc(request_mib * MIB)
    assert reserved_mib(a) == 20
    assert (len(a.segments()[0].blocks) == 2) is split
    assert a.allocated_bytes == (request_mib if split else 20) * MIB


def test_a_freed_block_merges_with_free_neighbours() -> None:
    a = allocator()
    blocks = [a.malloc(4 * MIB) for _ in range(5)]
    assert layout(a) == [[(4, True)] * 5]
    a.free(blocks[1])
    a.free(blocks[3])
    assert layout(a) == [[(4, True), (4, False), (4, True), (4, False), (4, True)]]
    a.free(blocks[2])
    assert layout(a) == [[(4, True), (12, False), (4, True)]]


def test_segments_never_merge() -> None:
    a = allocator()
    first, second = a.malloc(32 * MIB), a.malloc(32 * MIB)
    assert second == first - 32 * MIB
    a.free(first)
    a.free(second)
    assert layout(a) == [[(32, False)], [(32, False)]]


# --- giving memory back ---------------------------------------------------------------------------------------------


def test_freed_memory_stays_reserved_until_the_cache_is_emptied() -> None:
    a = allocator()
    address = a.malloc(30 * MIB)
    a.free(address)
    assert reserved_mib(a) == 30
    a.empty_cache()
    assert a.reserved_bytes == 0
    assert a.peak_reserved_bytes == 30 * MIB


def test_a_segment_in_use_is_kept_whole() -> None:
    a = allocator()
    kept, freed = a.malloc(4 * MIB), a.malloc(4 * MIB)
    a.free(freed)
    a.empty_cache()
    assert reserved_mib(a) == 20
    a.free(kept)
    a.empty_cache()
    assert a.reserved_bytes == 0


def test_the_cache_is_emptied_large_blocks_first_then_by_stream_and_size() -> None:
    a = allocator()
    requests = [(MIB, 5), (MIB, 0), (40 * MIB, 5), (60 * MIB, 0), (50 * MIB, 0)]
    for address in [a.malloc(size, stream) for size, stream in requests]:
        a.free(address)
    events = watch(a)
    a.empty_cache()
    assert [(event.size // MIB, event.stream) for event in events] == [(50, 0), (60, 0), (40, 5), (2, 0), (2, 5)]


def test_cached_memory_is_given_back_when_the_card_is_full() -> None:
    a = allocator(capacity_mib=100)
    a.free(a.malloc(60 * MIB))
    a.malloc(70 * MIB)
    assert reserved_mib(a) == 70
    assert a.num_alloc_retries == 1
    assert a.num_ooms == 0


def test_out_of_memory_after_everything_was_given_back() -> None:
    a = allocator(capacity_mib=100)
    kept = a.malloc(50 * MIB)
    a.free(a.malloc(30 * MIB))
    with pytest.raises(OutOfMemory) as caught:
        a.malloc(51 * MIB + 1)
    error = caught.value
    assert (error.requested_bytes, error.rounded_bytes) == (51 * MIB + 1, 51 * MIB + 512)
    assert error.segment_bytes == 52 * MIB
    assert (error.allocated_bytes, error.reserved_bytes, error.free_bytes) == (50 * MIB, 50 * MIB, 50 * MIB)
    assert error.capacity_bytes == 100 * MIB
    assert error.exit_code == 1
    assert "52.00 MiB" in str(error)
    assert (a.num_alloc_retries, a.num_ooms) == (1, 1)
    assert a.reserved_bytes == 50 * MIB
    a.free(kept)
    a.malloc(51 * MIB)


def test_the_limit_counts_the_whole_segment() -> None:
    """A request of 2 MiB asks for 20 MiB, and fails where only 19 are left."""
    a = allocator(capacity_mib=19)
    with pytest.raises(OutOfMemory):
        a.malloc(2 * MIB)
    a.set_capacity(20 * MIB)
    a.malloc(2 * MIB)


def test_memory_fraction_is_a_limit_of_its_own() -> None:
    a = CachingAllocator(None, device_total_bytes=1000 * MIB)
    a.set_memory_fraction(0.1)
    assert a.allowed_bytes == 100 * MIB
    a.malloc(100 * MIB)
    with pytest.raises(OutOfMemory):
        a.malloc(1)
    a.set_memory_fraction(1.0)
    a.malloc(1)
    with pytest.raises(UsageError, match="total memory"):
        CachingAllocator(conf=AllocatorConf.parse("per_process_memory_fraction:0.5"))
    fraction_in_conf = AllocatorConf.parse("per_process_memory_fraction:0.5")
    assert CachingAllocator(conf=fraction_in_conf, device_total_bytes=1001).allowed_bytes == 500


@pytest.mark.parametrize(("version", "allowed"), [("2.9.1", 1000 * MIB), ("2.10.0", None)])
def test_a_whole_fraction_was_a_limit_until_torch_2_10(version: str, allowed: int | None) -> None:
    a = CachingAllocator(None, device_total_bytes=1000 * MIB, torch_version=version)
    a.set_memory_fraction(1.0)
    assert a.allowed_bytes == allowed


def test_throw_on_cudamalloc_oom_gives_up_before_giving_back() -> None:
    a = allocator("throw_on_cudamalloc_oom:True", device_total_bytes=100 * MIB)
    a.free(a.malloc(60 * MIB))
    with pytest.raises(OutOfMemory):
        a.malloc(70 * MIB)
    assert reserved_mib(a) == 60
    assert (a.num_oom_rejections, a.num_ooms, a.num_alloc_retries) == (1, 0, 0)


# --- max_split_size_mb ----------------------------------------------------------------------------------------------


def test_a_block_above_max_split_size_is_not_for_smaller_requests() -> None:
    a = allocator("max_split_size_mb:64")
    a.free(a.malloc(64 * MIB))
    a.malloc(40 * MIB)
    assert sorted(layout(a)) == [[(40, True)], [(64, False)]]


def test_an_oversize_request_takes_a_block_less_than_20_mib_larger_and_leaves_it_whole() -> None:
    a = allocator("max_split_size_mb:64")
    large = a.malloc(100 * MIB)
    a.free(large)
    assert a.malloc(80 * MIB) != large
    assert a.malloc(80 * MIB + 512) == large
    assert a.allocated_bytes == 180 * MIB


def test_max_non_split_rounding_widens_that() -> None:
    a = allocator("max_split_size_mb:64,max_non_split_rounding_mb:40")
    large = a.malloc(100 * MIB)
    a.free(large)
    assert a.malloc(64 * MIB) == large


def test_one_oversize_block_that_is_large_enough_goes_first() -> None:
    a = allocator("max_split_size_mb:64", capacity_mib=300)
    for address in [a.malloc(size * MIB) for size in (70, 100, 130)]:
        a.free(address)
    events = watch(a)
    a.malloc(40 * MIB)
    assert [(event.action, event.size // MIB) for event in events] == [("segment_free", 70), ("segment_alloc", 40)]
    assert a.num_alloc_retries == 0


def test_else_the_largest_go_until_it_is_enough() -> None:
    a = allocator("max_split_size_mb:64", capacity_mib=300)
    for address in [a.malloc(size * MIB) for size in (70, 100, 130)]:
        a.free(address)
    events = watch(a)
    a.malloc(200 * MIB)
    assert [(event.action, event.size // MIB) for event in events] == [
        ("segment_free", 130),
        ("segment_free", 100),
        ("segment_alloc", 200),
    ]
    assert a.num_alloc_retries == 0


# --- garbage_collection_threshold -----------------------------------------------------------------------------------


def _with_garbage_collection(**more) -> CachingAllocator:
    return allocator("garbage_collection_threshold:0.5", allowed_bytes=400 * MIB, **more)


def test_old_blocks_go_before_new_memory_is_taken() -> None:
    a = _with_garbage_collection()
    old, busy, young = a.malloc(100 * MIB), a.malloc(30 * MIB), a.malloc(110 * MIB)
    a.free(old)
    for _ in range(5):
        a.free(busy)
        assert a.malloc(30 * MIB) == busy
    a.free(young)
    events = watch(a)
    a.malloc(150 * MIB)
    assert [(event.action, event.size // MIB) for event in events] == [("segment_free", 100), ("segment_alloc", 150)]
    assert a.num_alloc_retries == 0


def test_no_garbage_collection_below_the_threshold_or_without_a_limit() -> None:
    below = _with_garbage_collection()
    below.free(below.malloc(100 * MIB))
    below.malloc(110 * MIB)
    assert reserved_mib(below) == 210
    unlimited = allocator("garbage_collection_threshold:0.5", capacity_mib=400)
    unlimited.free(unlimited.malloc(250 * MIB))
    unlimited.malloc(100 * MIB)
    unlimited.malloc(140 * MIB)
    assert unlimited.num_alloc_retries == 0
    assert reserved_mib(unlimited) == 250


def test_small_segments_are_not_collected() -> None:
    a = _with_garbage_collection()
    a.free(a.malloc(1 * MIB))
    a.malloc(300 * MIB)
    a.malloc(20 * MIB)
    assert [segment.pool for segment in a.segments()].count("small") == 1


# --- what can be read -----------------------------------------------------------------------------------------------


def test_peaks_can_be_reset() -> None:
    a = allocator()
    a.free(a.malloc(50 * MIB))
    a.malloc(3 * MIB)
    a.empty_cache()
    assert (a.peak_allocated_bytes, a.peak_reserved_bytes) == (50 * MIB, 50 * MIB)
    a.reset_peaks()
    assert (a.peak_allocated_bytes, a.peak_reserved_bytes) == (a.allocated_bytes, a.reserved_bytes)


def test_memory_stats_have_torchs_keys() -> None:
    a = allocator()
    a.malloc(700)
    a.free(a.malloc(3 * MIB))
    a.malloc(2 * MIB)
    stats = a.memory_stats()
    expected = {
        "allocated_bytes.all.current": 1024 + 2 * MIB,
        "allocated_bytes.all.peak": 1024 + 3 * MIB,
        "allocated_bytes.all.allocated": 1024 + 5 * MIB,
        "allocated_bytes.all.freed": 3 * MIB,
        "allocated_bytes.small_pool.current": 1024,
        "requested_bytes.all.current": 700 + 2 * MIB,
        "reserved_bytes.all.current": 22 * MIB,
        "reserved_bytes.large_pool.current": 20 * MIB,
        "segment.all.current": 2,
        "allocation.all.current": 2,
        "allocation.all.allocated": 3,
        "inactive_split.all.current": 2,
        "inactive_split_bytes.large_pool.current": 18 * MIB,
        "num_alloc_retries": 0,
        "num_ooms": 0,
        "num_device_alloc": 2,
        "max_split_size": -1,
    }
    assert {key: stats[key] for key in expected} == expected


def test_what_was_not_allocated_cannot_be_freed() -> None:
    a = allocator()
    address = a.malloc(100)
    a.free(address)
    with pytest.raises(ValueError, match="no allocation"):
        a.free(address)
    with pytest.raises(ValueError, match="cannot allocate"):
        a.malloc(-1)


def test_settings_can_change_on_the_way() -> None:
    a = allocator()
    plain = a.malloc(50 * MIB)
    a.set_conf(AllocatorConf.parse("expandable_segments:True"))
    expandable = a.malloc(50 * MIB)
    a.set_conf(AllocatorConf())
    a.free(plain)
    a.free(expandable)
    assert a.malloc(45 * MIB) == plain  # expandable memory is not touched while the option is off
    assert [segment.expandable for segment in a.segments()].count(True) == 1
    a.empty_cache()
    assert reserved_mib(a) == 50
