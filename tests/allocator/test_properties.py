"""What holds after any sequence of calls, under any configuration."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.allocator import AllocatorConf, CachingAllocator, OutOfMemory
from vramcast.allocator.constants import MIB

CONFS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:40",
    "garbage_collection_threshold:0.5",
    "max_split_size_mb:40,garbage_collection_threshold:0.7",
    "roundup_power2_divisions:4",
    "large_segment_size_mb:12",
    "expandable_segments:True,large_segment_size_mb:12,max_split_size_mb:40",
]


@dataclass(frozen=True)
class Call:
    kind: str
    size: int = 0
    stream: int = 0
    which: int = 0


sizes = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 2 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 2 * MIB, 4 * MIB, 10 * MIB, 20 * MIB, 40 * MIB]),
    st.integers(1, 80 * MIB),
)
mallocs = st.builds(Call, kind=st.just("malloc"), size=sizes, stream=st.sampled_from([0, 0, 0, 7]))
frees = st.builds(Call, kind=st.just("free"), which=st.integers(0, 10**6))
call_lists = st.lists(st.one_of(mallocs, mallocs, mallocs, frees, frees, st.just(Call("empty"))), max_size=120)


@dataclass
class Run:
    """An allocator, and what its caller holds."""

    allocator: CachingAllocator
    live: dict[int, int]
    """Address to requested bytes."""

    def make(self, call: Call) -> None:
        if call.kind == "malloc":
            try:
                address = self.allocator.malloc(call.size, call.stream)
            except OutOfMemory:
                return
            assert address not in self.live
            self.live[address] = call.size
        elif call.kind == "empty":
            self.allocator.empty_cache()
        elif self.live:
            address = sorted(self.live)[call.which % len(self.live)]
            self.allocator.free(address)
            del self.live[address]

    def check(self) -> None:
        a = self.allocator
        segments = a.segments()
        end = 0
        for segment in segments:
            assert segment.address >= end, "segments overlap"
            end = segment.address
            for block in segment.blocks:
                assert block.address == end, "blocks do not tile their segment"
                assert block.size_bytes > 0
                assert block.size_bytes % 512 == 0
                end += block.size_bytes
            assert end - segment.address == segment.size_bytes
            states = [block.allocated for block in segment.blocks]
            assert all(a or b for a, b in pairwise(states)), "free neighbours were not merged"
        blocks = [block for segment in segments for block in segment.blocks]
        used = {block.address: block for block in blocks if block.allocated}
        assert {address: block.requested_bytes for address, block in used.items()} == self.live
        assert all(block.size_bytes >= block.requested_bytes for block in used.values())
        assert a.allocated_bytes == a.active_bytes == sum(block.size_bytes for block in used.values())
        assert a.requested_bytes == sum(self.live.values())
        assert a.reserved_bytes == sum(segment.size_bytes for segment in segments)
        assert a.allocated_bytes <= a.peak_allocated_bytes <= a.peak_reserved_bytes
        assert a.reserved_bytes <= a.peak_reserved_bytes
        stats = a.memory_stats()
        for name in ("allocated_bytes", "reserved_bytes", "requested_bytes", "inactive_split_bytes", "segment"):
            pools = [stats[f"{name}.{pool}.current"] for pool in ("small_pool", "large_pool")]
            assert stats[f"{name}.all.current"] == sum(pools), name
        assert stats["segment.all.current"] == sum(not segment.expandable for segment in segments)


def _start(conf: str, version: str = "2.11", **limits: int | None) -> Run:
    return Run(CachingAllocator(conf=AllocatorConf.parse(conf), torch_version=version, **limits), {})


@pytest.mark.parametrize("conf", CONFS)
@settings(max_examples=40, deadline=None)
@given(
    calls=call_lists,
    capacity=st.sampled_from([None, 64 * MIB, 200 * MIB]),
    allowed=st.sampled_from([None, 100 * MIB]),
    version=st.sampled_from(["2.11", "2.12", "2.13"]),
)
def test_invariants(conf: str, calls: list[Call], capacity: int | None, allowed: int | None, version: str) -> None:
    run = _start(conf, version, capacity_bytes=capacity, allowed_bytes=allowed)
    for call in calls:
        run.make(call)
        if capacity is not None:
            assert run.allocator.reserved_bytes <= capacity
    run.check()
    for address in list(run.live):
        run.allocator.free(address)
        del run.live[address]
    run.check()
    assert run.allocator.allocated_bytes == run.allocator.requested_bytes == 0
    run.allocator.empty_cache()
    assert run.allocator.reserved_bytes == 0
    assert run.allocator.segments() == []


@pytest.mark.parametrize("conf", CONFS)
@settings(max_examples=25, deadline=None)
@given(calls=call_lists)
def test_reserved_memory_falls_only_where_it_is_given_back(conf: str, calls: list[Call]) -> None:
    run = _start(conf)
    for call in calls:
        before = run.allocator.reserved_bytes
        run.make(call)
        if call.kind == "free":
            assert run.allocator.reserved_bytes == before
        elif call.kind == "malloc":
            assert run.allocator.reserved_bytes >= before
        else:
            assert run.allocator.reserved_bytes <= before
    assert run.allocator.num_alloc_retries == run.allocator.num_ooms == 0


@pytest.mark.parametrize("conf", CONFS)
@settings(max_examples=25, deadline=None)
@given(calls=call_lists, capacity=st.sampled_from([64 * MIB, 200 * MIB]))
def test_out_of_memory_leaves_what_is_allocated_alone(conf: str, calls: list[Call], capacity: int) -> None:
    run = _start(conf, capacity_bytes=capacity)
    for call in calls:
        held, ooms = dict(run.live), run.allocator.num_ooms
        allocated = run.allocator.allocated_bytes
        run.make(call)
        if run.allocator.num_ooms > ooms:
            assert run.live == held
            assert run.allocator.allocated_bytes == allocated
            run.check()
