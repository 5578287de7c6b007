"""cuDNN's batch norm: scratch of the channels-last kernels.

The contiguous kernels take none, and neither keeps a reserve for backward. The channels-last ones cut the pixels into
tiles; each tile leaves two fp32 sums for every channel, and each group of channels a few counters. Tile sizes fitted
on an H200 with cuDNN 9.19, where they reproduce every one of 200 measured sizes from 16 channels on; taken to be the
same on other cards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_PIXELS_FORWARD = {4: 64, 2: 160}  # by size of an element
_PIXELS_BACKWARD = 96
_CHANNELS, _CHANNELS_UNALIGNED = 64, 16
_SUMS_BYTES, _COUNTER_BYTES = 8, 4
_FIXED_FORWARD_BYTES, _FIXED_BACKWARD_BYTES = 1072, 1056


def batch_norm_workspace_bytes(shape: Sequence[int], item_bytes: int, channels_last: bool, *, backward: bool) -> int:
    """The transient workspace of cudnn_batch_norm in training, or of its backward."""
    if not channels_last or len(shape) < 4:
        return 0
    channels, pixels = shape[1], shape[0] * math.prod(shape[2:])
    width = _CHANNELS if channels % 4 == 0 else _CHANNELS_UNALIGNED if channels > 3 else 1
    groups = -(-channels // width) if width > 1 else 1
    sums = groups * width * _SUMS_BYTES
    if backward:
        return -(-pixels // _PIXELS_BACKWARD) * sums + groups * _COUNTER_BYTES + _FIXED_BACKWARD_BYTES
    tiles = -(-pixels // _PIXELS_FORWARD[item_bytes])
    return tiles * (sums + groups * _COUNTER_BYTES) + groups * _COUNTER_BYTES + _FIXED_FORWARD_BYTES
