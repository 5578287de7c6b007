"""Memory that sorting takes beside its results (Sort.cpp, SortStable.cu and cuda/cub.cuh in PyTorch; CUB's onesweep).

Dimensions of up to 4096 elements are sorted in place, beside their numbers. Longer ones go through CUB, all slices
together where they are few, and CUB needs a second buffer for keys and values.
"""

from __future__ import annotations

SMALL_SORT = 4096
FEW_SEGMENTS = 128
LONG_SEGMENT = 1_000_000
_INDEX_BYTES = 8
_DIGITS = 256
_TILE_OF_PAIRS = {2: 5632, 4: 384 * 14}
_TILE_OF_KEYS = 384 * 15
"""Elements of one block on Hopper, as seen with keys of this many bytes beside indices, and with indices alone."""


def sort_steps(length: int, slices: int, key_bytes: int) -> list[list[int]]:
    """What is held at once, step after step, to sort `slices` slices of `length` elements."""
    count = length * slices
    if not count:
        return []
    if length <= SMALL_SORT:
        return [[length * _INDEX_BYTES]]
    if slices == 1 or length >= LONG_SEGMENT:
        return [[length * _INDEX_BYTES, _sort_pairs(length, key_bytes)]]
    if slices < FEW_SEGMENTS:
        both = [count * _INDEX_BYTES] * 2
        bits = max(1, (slices - 1).bit_length())
        return [
            [*both, count * key_bytes, _sort_pairs(count, key_bytes)],
            [*both, _radix_sort(count, _INDEX_BYTES, 0, _TILE_OF_KEYS, bits)],
        ]
    return [[count * _INDEX_BYTES, _aligned(count * key_bytes) + _aligned(count * _INDEX_BYTES) + 255]]


def _sort_pairs(count: int, key_bytes: int) -> int:
    tile = _TILE_OF_PAIRS.get(key_bytes, _TILE_OF_PAIRS[4])
    return _radix_sort(count, key_bytes, _INDEX_BYTES, tile, 8 * key_bytes)


def _radix_sort(count: int, key_bytes: int, value_bytes: int, tile: int, bits: int) -> int:
    """Temporary storage of cub::DeviceRadixSort: bins, the state of each block, a second buffer, counters."""
    passes = -(-bits // 8)
    again = passes > 1
    parts = (
        passes * _DIGITS * 8,
        -(-count // tile) * _DIGITS * 4,
        again * count * key_bytes,
        again * count * value_bytes,
        passes * 4,
    )
    return sum(_aligned(part) for part in parts) + 255


def _aligned(size: int) -> int:
    return -(-size // 256) * 256
