"""Sizes fixed in PyTorch's CUDA caching allocator (c10/core/AllocatorConfig.h, torch 2.6 to 2.14)."""

from __future__ import annotations

from typing import Final

MIB: Final = 1024 * 1024

MIN_BLOCK_BYTES: Final = 512
"""kMinBlockSize: every block is a multiple of this."""

SMALL_REQUEST_BYTES: Final = 1 * MIB
"""kSmallSize: the largest rounded request the small pool serves."""

SMALL_SEGMENT_BYTES: Final = 2 * MIB
"""kSmallBuffer: what the small pool asks the driver for."""

DIRECT_REQUEST_BYTES: Final = 10 * MIB
"""kMinLargeAlloc: from here a request gets a segment of its own size."""

LARGE_SEGMENT_BYTES: Final = 20 * MIB
"""Default of large_segment_size: what a request between 1 and 10 MiB asks the driver for."""

SEGMENT_ROUNDING_BYTES: Final = 2 * MIB
"""kRoundLarge: segments of their own size are rounded up to this."""

UNLIMITED: Final = 2**64 - 1
"""std::numeric_limits<size_t>::max(), torch's "no max_split_size"."""
