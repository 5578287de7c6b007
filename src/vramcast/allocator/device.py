"""The driver's side: how much memory is taken, where segments lie, and when there is no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vramcast.allocator.addresses import AddressSpace
from vramcast.allocator.driver_events import FIRST_KERNEL, TAKEN_BYTES


class SegmentEvent(NamedTuple):
    """A change of reserved memory, named as in torch's trace."""

    action: str
    address: int
    size: int
    stream: int


class DeviceMemory:
    """Memory taken from the card by segments (cudaMalloc) and by pages of expandable segments (cuMemCreate)."""

    def __init__(self, capacity_bytes: int | None, address_of_segment: Callable[[int], int] | None) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0
        self.total_reserved_bytes = 0
        """Everything ever reserved; the difference to reserved_bytes has been given back."""
        self.num_allocs = 0
        self.num_frees = 0
        self.num_segments = 0
        self.total_segments = 0
        self.peak_segments = 0
        self.observer: Callable[[SegmentEvent], None] | None = None
        self._addresses = AddressSpace()
        self._address_of_segment = address_of_segment

    def malloc(self, size: int, stream: int) -> int | None:
        """A new segment, or None where cudaMalloc would say there is no memory."""
        if not self._fits(size):
            return None
        address = self.reserve_addresses(size)
        self.num_segments += 1
        self.total_segments += 1
        self.peak_segments = max(self.peak_segments, self.num_segments)
        self._took("segment_alloc", address, size, stream)
        return address

    def free(self, address: int, size: int, stream: int) -> None:
        self.num_segments -= 1
        self._gave_back("segment_free", address, size, stream)
        self.release_addresses(address, size)

    def map(self, address: int, size: int, stream: int) -> bool:
        """Back a range with memory; all of it or, where the card has too little, nothing."""
        if not self._fits(size):
            return False
        self._took("segment_map", address, size, stream)
        return True

    def unmap(self, address: int, size: int, stream: int) -> None:
        self._gave_back("segment_unmap", address, size, stream)

    def reserve_addresses(self, size: int) -> int:
        if self._address_of_segment is not None:
            return self._address_of_segment(size)
        return self._addresses.reserve(size)

    def driver_event(self, name: str) -> None:
        """The driver has taken memory for itself, of which only the addresses are booked here."""
        if name == FIRST_KERNEL:
            self._addresses.settle()
        else:
            self._addresses.reserve(TAKEN_BYTES[name])

    def release_addresses(self, address: int, size: int) -> None:
        if self._address_of_segment is None:
            self._addresses.release(address, size)

    def _fits(self, size: int) -> bool:
        return self.capacity_bytes is None or self.reserved_bytes + size <= self.capacity_bytes

    def _took(self, action: str, address: int, size: int, stream: int) -> None:
        self.num_allocs += 1
        self.reserved_bytes += size
        self.total_reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        if self.observer is not None:
            self.observer(SegmentEvent(action, address, size, stream))

    def _gave_back(self, action: str, address: int, size: int, stream: int) -> None:
        self.num_frees += 1
        self.reserved_bytes -= size
        if self.observer is not None:
            self.observer(SegmentEvent(action, address, size, stream))
