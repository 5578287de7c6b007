"""What the allocator can refuse: a configuration it cannot read, one it does not model, a request that does not fit."""

from __future__ import annotations

from vramcast.base.errors import CannotPredict, UsageError, VramcastError


class AllocatorConfError(UsageError, ValueError):
    """A PYTORCH_ALLOC_CONF string that torch would not accept either."""


class BackendNotModelled(CannotPredict, ValueError):
    """A configuration torch accepts but whose memory is not managed by the caching allocator."""


class OutOfMemory(VramcastError):
    """The allocator freed what it could, tried again, and the memory still was not there."""

    exit_code = 1

    def __init__(
        self,
        *,
        requested_bytes: int,
        rounded_bytes: int,
        segment_bytes: int,
        allocated_bytes: int,
        reserved_bytes: int,
        capacity_bytes: int | None,
        allowed_bytes: int | None,
    ) -> None:
        self.requested_bytes = requested_bytes
        """What the caller asked for."""
        self.rounded_bytes = rounded_bytes
        """The same, rounded up to a block size."""
        self.segment_bytes = segment_bytes
        """What the allocator asked the driver for; the figure in torch's own message."""
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.capacity_bytes = capacity_bytes
        self.allowed_bytes = allowed_bytes
        limits = [limit for limit in (capacity_bytes, allowed_bytes) if limit is not None]
        self.free_bytes = max(0, min(limits) - reserved_bytes) if limits else None
        """What was left under the tighter limit after every unused cached block had been returned."""
        super().__init__(self._message(min(limits) if limits else None))

    def _message(self, limit_bytes: int | None) -> str:
        limit = "no limit" if limit_bytes is None else f"a limit of {_gib(limit_bytes)}"
        free = "" if self.free_bytes is None else f", {_gib(self.free_bytes)} free"
        return (
            f"out of memory: tried to allocate {_gib(self.segment_bytes)} under {limit}{free}; "
            f"{_gib(self.allocated_bytes)} allocated, {_gib(self.reserved_bytes)} reserved"
        )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.2f} MiB" if size_bytes < 2**30 else f"{size_bytes / 2**30:.2f} GiB"
