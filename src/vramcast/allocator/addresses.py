"""Where cudaMalloc puts a segment when no recording says it."""

from __future__ import annotations

from vramcast.allocator.constants import SEGMENT_ROUNDING_BYTES

FIRST_ADDRESS = 1 << 44
"""Any address will do; from here there is room for hundreds of address ranges below 2**48."""


class AddressSpace:
    """Addresses that grow, with the gaps of freed segments filled again, lowest first.

    Only the order of addresses matters to the allocator: equal free blocks are told apart by it.
    """

    def __init__(self, first_address: int = FIRST_ADDRESS) -> None:
        self._end = first_address
        self._gaps: list[tuple[int, int]] = []  # (address, size), by address, never touching each other

    def reserve(self, size_bytes: int) -> int:
        """Take the lowest range of this size."""
        size = _rounded(size_bytes)
        for i, (address, gap) in enumerate(self._gaps):
            if gap >= size:
                if gap == size:
                    del self._gaps[i]
                else:
                    self._gaps[i] = (address + size, gap - size)
                return address
        address = self._end
        self._end += size
        return address

    def release(self, address: int, size_bytes: int) -> None:
        """Give a range back."""
        self._gaps.append((address, _rounded(size_bytes)))
        self._gaps.sort()
        joined: list[tuple[int, int]] = []
        for start, size in self._gaps:
            if joined and joined[-1][0] + joined[-1][1] == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((start, size))
        if joined[-1][0] + joined[-1][1] == self._end:
            self._end = joined.pop()[0]
        self._gaps = joined


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES
