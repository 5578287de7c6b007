"""Where cudaMalloc puts segments: see vramcast/allocator/addresses.py."""

import gzip
import json
from pathlib import Path

import pytest

from vramcast.allocator import AddressSpace, CachingAllocator
from vramcast.allocator.constants import MIB
from vramcast.allocator.driver_events import CUBLAS_HANDLE, CUDNN_HANDLE, FIRST_KERNEL, NORM, RANDOM_NUMBERS
from vramcast.allocator.history import load_history

EVENTS = Path(__file__).parents[2] / "lab" / "data" / "records" / "events"
CONTEXT_MIB = 512
"""What the context holds above all segments, two free parts of it aside."""


def full_context() -> AddressSpace:
    space = AddressSpace((1 << 40) + CONTEXT_MIB * MIB)
    assert space.reserve(2 * MIB) == (1 << 40) + 414 * MIB
    assert space.reserve(24 * MIB) == (1 << 40) + 488 * MIB
    return space


def test_ranges_of_32_mib_grow_down_and_their_rests_are_used_first() -> None:
    """Read off a recording of an H200: 118, 24, 218, 20, 2, 70 and 12 MiB in this order."""
    space = full_context()
    offsets = [space.reserve(size * MIB) - (1 << 40) for size in (118, 24, 218, 20, 2, 70, 12)]
    assert [offset // MIB for offset in offsets] == [-128, -160, -384, -416, -396, -512, -442]


def test_a_hole_is_used_again_from_its_high_end_if_it_is_larger() -> None:
    space = full_context()
    first, _ = space.reserve(96 * MIB), space.reserve(32 * MIB)
    space.release(first, 96 * MIB)
    assert space.reserve(64 * MIB) == first + 32 * MIB
    assert space.reserve(32 * MIB) < first  # a hole of just that size is passed over


def test_a_free_part_of_the_newest_range_is_used_and_of_these_the_smallest() -> None:
    space = full_context()
    parts = [space.reserve(size * MIB) for size in (40, 24, 40, 24)]  # two ranges of 64 MiB, each full
    assert parts[1] == parts[0] + 40 * MIB and parts[3] == parts[2] + 40 * MIB
    low = space.reserve(20 * MIB)
    for part, size in ((parts[0], 40), (parts[3], 24)):
        space.release(part, size * MIB)
    assert space.reserve(12 * MIB) == low + 20 * MIB
    assert space.reserve(24 * MIB) == parts[3]
    assert space.reserve(24 * MIB) == parts[0]


@pytest.mark.parametrize("name", ["stress", "stress_max_split_gc"])
def test_segments_lie_as_recorded(name: str) -> None:
    """Hundreds of segments taken and given back at random, with a constant between the recorded addresses and ours."""
    history = load_history(Path(__file__).parent / "histories" / f"{name}.json.gz")
    space = AddressSpace()
    places: dict[int, int] = {}
    differences = []
    for event in history.events:
        if event.action == "segment_alloc":
            places[event.address] = space.reserve(event.size)
            differences.append(places[event.address] - event.address)
        elif event.action == "segment_free":
            space.release(places.pop(event.address), event.size)
    context = 3  # the first ones lie in the context's ranges, which the recorded process had others of
    assert len(differences) > 200 and len(set(differences[context:])) == 1


def _offsets_mib(space: AddressSpace, *sizes_mib: int) -> list[int]:
    return [(space.reserve(size * MIB) - (1 << 40)) // MIB for size in sizes_mib]


def test_what_the_context_lets_go_of_is_used_from_below_where_a_segment_lies_in_it() -> None:
    """Read off a recording (a Kolmogorov-Arnold network): 104 MiB of the second step lie above 320 of the first."""
    space = AddressSpace((1 << 40) + CONTEXT_MIB * MIB)
    assert _offsets_mib(space, 2, 20, 86) == [414, 488, -96]
    space.settle()
    assert _offsets_mib(space, 86, 86, 344, 320, 104) == [0, 86, -480, -800, 172]
    space.settle()
    assert _offsets_mib(space, 320) == [-1120]


def test_and_as_any_hole_where_none_does() -> None:
    """Read off a recording (a language model whose embedding comes first): 44 MiB at +352, +288 and so on."""
    space = AddressSpace((1 << 40) + CONTEXT_MIB * MIB)
    assert _offsets_mib(space, 250, 16, 44) == [-256, 488, -320]
    space.settle()
    assert _offsets_mib(space, 44, 44, 44) == [352, 288, 224]


def test_the_context_lets_go_when_a_kernel_has_run_however_much_has_been_taken() -> None:
    """A DiT took 2.8 GiB for its weights, all by copies, before anything lay there."""

    def places(kernel: bool, *sizes_mib: int) -> list[int]:
        a = CachingAllocator()
        a.malloc(100)
        addresses = [a.malloc(size * MIB) for size in sizes_mib[:1]]
        if kernel:
            a.driver_event(FIRST_KERNEL)
        addresses += [a.malloc(size * MIB) for size in sizes_mib[1:]]
        return addresses

    for before in (50, 2900):
        falling, rising = places(False, before, 100), places(True, before, 100)
        assert falling[1] < falling[0] and rising[1] > rising[0]


def test_small_segments_after_the_first_kernel_lie_in_its_range() -> None:
    """Read off recordings: 2 MiB at +26 of a new range, and the next large segment where the context was."""
    space = AddressSpace((1 << 40) + CONTEXT_MIB * MIB)
    assert _offsets_mib(space, 2, 22) == [414, 488]
    space.settle()
    assert _offsets_mib(space, 2, 2, 20, 2) == [-6, -4, 0, -2]


@pytest.mark.parametrize(
    ("name", "driver_events"),
    [
        (
            "ho-hubert-bf16",
            [(1, RANDOM_NUMBERS), (3, FIRST_KERNEL), (20, NORM), (237, CUDNN_HANDLE), (291, CUBLAS_HANDLE)],
        ),
        ("d4-40-dit_xl", [(293, FIRST_KERNEL), (315, CUDNN_HANDLE), (339, CUBLAS_HANDLE)]),
    ],
)
def test_what_the_driver_takes_decides_which_block_is_used(name: str, driver_events: list[tuple[int, str]]) -> None:
    """With the events of a real run and our addresses, reserved memory peaks as it did; without the driver's part, not.

    The numbers of events are those that the virtual card gives for the same workload.
    """
    record = json.loads(gzip.decompress((EVENTS / f"{name}.json.gz").read_bytes()))

    def peak(marks: list[tuple[int, str]]) -> int:
        allocator = CachingAllocator(torch_version="2.11")
        at = dict(marks)
        addresses: list[int] = []
        for number, event in enumerate(record["events"]):
            if number in at:
                allocator.driver_event(at[number])
            if event >= 0:
                addresses.append(allocator.malloc(event))
            else:
                allocator.free(addresses[-event - 1])
        return allocator.memory_stats()["reserved_bytes.all.peak"]

    assert peak(driver_events) == record["peak_reserved_bytes"]
    assert peak(driver_events[:1]) != record["peak_reserved_bytes"]


def test_segment_addresses_can_be_given() -> None:
    a = CachingAllocator(address_of_segment=lambda size: 0x7000_0000_0000 + size)
    assert a.malloc(100) == 0x7000_0000_0000 + 2 * MIB
