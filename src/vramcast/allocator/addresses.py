"""Where cudaMalloc puts a segment when no recording says it.

Only the order of addresses matters: up to torch 2.11 the allocator tells equal free blocks apart by it, and a wrong
guess can move the reserved peak by 3 %. Read off recordings of an H200 (driver 580): the driver takes address ranges
in multiples of 32 MiB, each below the last (as mmap does), puts the allocation at the low end of its range, and serves
later allocations from what is free in ranges: in the newest range that has room, there from the smallest part that is
large enough. A range that is wholly free goes back; a hole left behind is used again from its high end, if it is larger
than what is asked. So it is with all 1,070 segments that two recordings take and give back at random.

A process with PyTorch's kernels begins with two ranges of the context's own. In the first, 2 MiB are free at its end,
in the second 24 MiB. When the first kernel runs (copies from the host and memory that is only taken run none, random
numbers do not count, a change of layout does), a range of 32 MiB is taken for it, 6 MiB of which stay free, and the
rest of the first range is let go of, 414 MiB: the next segments lie there, from its low end on if the 2 MiB were taken
before, else as in any hole. 32 recordings say so; it does not matter how much has been taken by then. The driver takes
more on the way, see `driver_events`.

Known limitation: ranges lie among the host's own memory. Weights that were made on the host and then moved leave holes
there, which later ranges may use; where depends on the process, and can differ from one run to the next.
"""

from __future__ import annotations

from bisect import insort

from vramcast.allocator.constants import SEGMENT_ROUNDING_BYTES

FIRST_ADDRESS = 1 << 46
"""Ranges grow down from here; there is room for hundreds of address ranges of expandable segments."""
RANGE_BYTES = 32 << 20
_MIB = 1 << 20
_FIRST_RANGE_BYTES, _FIRST_USED_BYTES = 416 * _MIB, 414 * _MIB
_SECOND_RANGE_BYTES, _SECOND_USED_BYTES = 96 * _MIB, 72 * _MIB
_KERNEL_RANGE_BYTES, _KERNEL_USED_BYTES = 32 * _MIB, 26 * _MIB


class AddressSpace:
    """Hands out addresses as the driver would."""

    def __init__(self, first_address: int = FIRST_ADDRESS) -> None:
        self._low = first_address
        self._holes: list[tuple[int, int]] = []  # (address, size) between ranges in use, by address
        self._ranges: dict[int, int] = {}  # range -> size
        self._used: dict[int, int] = {}  # range -> bytes in use
        self._rest: list[tuple[int, int, int]] = []  # free parts of ranges: (address, size, range), by address
        self._born: dict[int, int] = {}  # range -> how many came before it
        self._count = 0
        second = self._context_range(_SECOND_RANGE_BYTES, _SECOND_USED_BYTES)
        self._first: int | None = self._context_range(_FIRST_RANGE_BYTES, _FIRST_USED_BYTES)
        assert self._first < second

    def _context_range(self, extent: int, used: int) -> int:
        start = self._new_range(extent)
        self._ranges[start], self._used[start] = extent, used
        insort(self._rest, (start + used, extent - used, start))
        return start

    def settle(self) -> None:
        """A kernel has run: there is a range for it, and the context has let go of its first one."""
        if self._first is not None:
            first, self._first = self._first, None
            self._context_range(_KERNEL_RANGE_BYTES, _KERNEL_USED_BYTES)
            self.release(first, _FIRST_USED_BYTES)

    def reserve(self, size_bytes: int) -> int:
        size = _rounded(size_bytes, SEGMENT_ROUNDING_BYTES)
        parts = [part for part in self._rest if part[1] >= size]
        if parts:
            part = address, free, owner = min(parts, key=lambda part: (-self._born[part[2]], part[1], part[0]))
            self._rest.remove(part)
            if free > size:
                insort(self._rest, (address + size, free - size, owner))
            self._used[owner] += size
            return address
        extent = _rounded(size, RANGE_BYTES)
        start = self._new_range(extent)
        self._ranges[start], self._used[start] = extent, size
        if extent > size:
            insort(self._rest, (start + size, extent - size, start))
        return start

    def release(self, address: int, size_bytes: int) -> None:
        size = _rounded(size_bytes, SEGMENT_ROUNDING_BYTES)
        owner = next(start for start, extent in self._ranges.items() if start <= address < start + extent)
        self._used[owner] -= size
        if self._used[owner]:
            insort(self._rest, (address, size, owner))
            self._join_rest(owner)
            return
        self._rest = [part for part in self._rest if part[2] != owner]
        self._holes = _joined(sorted([*self._holes, (owner, self._ranges.pop(owner))]))
        del self._used[owner]
        if self._holes[0][0] == self._low:
            self._low += self._holes.pop(0)[1]

    def _new_range(self, extent: int) -> int:
        start = self._place(extent)
        self._count += 1
        self._born[start] = self._count
        return start

    def _place(self, extent: int) -> int:
        for i in range(len(self._holes) - 1, -1, -1):
            address, free = self._holes[i]
            if free > extent:
                self._holes[i] = (address, free - extent)
                return address + free - extent
        self._low -= extent
        return self._low

    def _join_rest(self, owner: int) -> None:
        parts = _joined([(address, size) for address, size, of in self._rest if of == owner])
        self._rest = sorted(
            [part for part in self._rest if part[2] != owner] + [(address, size, owner) for address, size in parts]
        )


def _joined(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, size in parts:
        if joined and joined[-1][0] + joined[-1][1] == start:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((start, size))
    return joined


def _rounded(size_bytes: int, multiple: int) -> int:
    return -(-size_bytes // multiple) * multiple
