"""Temporary storage of CUB where elements are counted and selected (nonzero_cuda_out_impl in Nonzero.cu).

On an H200 with torch 2.11, masks of 2,004 to 1,943,928 elements took what these functions give.
"""

from __future__ import annotations

_ALIGNMENT = 256
_ONE_TILE = 256 * 16
"""Elements that one block of cub::DeviceReduce adds up: it needs no sums of others."""
_BLOCKS_PER_MULTIPROCESSOR = 5 * 8
"""CUB's subscription factor, and the blocks of the kernel that a multiprocessor holds."""
_SELECTED_TILE = 4224
_WARP = 32


def counting_bytes(elements: int, sm_count: int) -> int:
    """To count how many elements are not zero: a sum for each block."""
    return 1 if elements <= _ONE_TILE else _padded(4 * _BLOCKS_PER_MULTIPROCESSOR * sm_count)


def selecting_bytes(elements: int) -> int:
    """To write their places one after the other: a state for each tile."""
    tiles = -(-elements // _SELECTED_TILE)
    return _ALIGNMENT + _padded(8 * (tiles + _WARP))


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT - 1
