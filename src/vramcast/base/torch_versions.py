"""Versions of torch: which ones are supported, and since when each of their rules about memory holds.

A constant below is the first version with a change; a rule compares the version it is asked about with it
(`version >= FUSED_RMS_NORM`). The numbers are pull requests of pytorch/pytorch.
"""

from __future__ import annotations

import re
from typing import Final

Version = tuple[int, int]

OLDEST: Final = (2, 6)
NEWEST: Final = (2, 14)
"""The newest version whose sources were read; a later one is predicted with these rules, and a note says so."""

COMPILED_HERE: Final = ((2, 11), (2, 16))
"""From this version to below that one, torch.compile is run on the virtual card; its insides change with each."""
COMPILED_AND_MEASURED: Final = (2, 11)
"""The version whose compiled code was compared with real runs (docs/lab/compiled-code.md)."""

# The caching allocator and its settings. Which of two equal blocks goes first: see allocator/blocks.py.
WHOLE_CARD_IS_NO_LIMIT: Final = (2, 10)
"""A memory fraction of 1.0 limits nothing; before, it was a limit, which garbage collection asks for (#161035)."""
PYTORCH_ALLOC_CONF: Final = (2, 10)
"""The variable PYTORCH_ALLOC_CONF is read, after PYTORCH_CUDA_ALLOC_CONF (#165131)."""
SPLIT_SIZE_OF_A_SEGMENT: Final = (2, 10)
"""max_split_size_mb and max_non_split_rounding_mb may be 20 MiB, not only more (#165131)."""

# cuBLAS
KEPT_LT_WORKSPACE: Final = (2, 9)
"""cuBLASLt's workspace is kept for each handle and stream; before, each call took and freed it (#156495)."""
ONE_CUBLAS_WORKSPACE: Final = (2, 12)
"""cuBLASLt works in cuBLAS's own workspace (#173002, #175879)."""
LARGE_CUBLAS_WORKSPACE_BLACKWELL: Final = (2, 12)
"""32 MiB on compute capability 10 and 12 too (#175344)."""
LARGE_CUBLAS_WORKSPACE_THOR: Final = (2, 14)
"""And on 11 (#189312)."""

# Attention (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)
BLACKWELL_ATTENTION: Final = (2, 7)
"""The fused kernels take cards newer than compute capability 9.0 (#145602)."""
CUDNN_HEADS_MUST_FIT: Final = (2, 8)
"""cuDNN's attention is only asked where the numbers of heads go together."""
CUDNN_WIDE_HEADS: Final = (2, 8)
"""cuDNN takes heads of 256 on Hopper, with a cuDNN that can."""
CUDNN_ATTENTION_FIRST: Final = (2, 9)
"""cuDNN is asked first on Hopper and Blackwell (#149282); before, it came after everything else."""
CUDNN_SINGLE_QUERIES: Final = (2, 9)
"""cuDNN takes a query of length 1 without dropout (#149282)."""
CUDNN_ATTENTION_FIRST_IF_NEW: Final = (2, 10)
"""Only with a cuDNN after 9.15.0 (#171627, in the release of 2.10 too)."""
CUDNN_ATTENTION_DROPOUT_GAP: Final = (2, 10)
"""cuDNN 9.11 to 9.13 are not asked for dropout."""
CUDNN_192_AND_128: Final = (2, 11)
"""Heads of 192 for keys and 128 for values on Blackwell."""
CUDNN_DROPOUT_IN_SIXTEENTHS: Final = (2, 12)
CUDNN_HEADS_OF_256: Final = (2, 13)
"""Heads of 256 on Hopper and Blackwell with a cuDNN after 9.22.0, and with no other; at most 65535 heads."""
ALIGNED_EFFICIENT_ATTENTION: Final = (2, 13)
"""The memory-efficient kernel takes inputs that start at a multiple of 16 bytes only."""
ONE_HEAD_FOR_ALL: Final = (2, 14)
"""One head of keys and values serves all queries in each fused kernel, grouped heads go to the memory-efficient one."""

FLASH_SEEDS_ON_CARD: Final = (2, 7)
"""The random state of flash attention lies on the card; before, on the host."""
FLASH_SUMS_WITHOUT_PADDING: Final = (2, 7)
"""Sequences of varied lengths have as many sums as rows; before, as if each were as long as the longest."""
FLASH_ROUNDS_TO_256: Final = (2, 7)
"""Its backward pass sums heads of more than 192 in rows of 256."""
FLASH_ROUNDS_TO_64: Final = (2, 11)
"""Heads wider than 128 in a multiple of 64 (#174114)."""

# torch.distributed
NCCL_HOLDS_TENSORS: Final = (2, 8)
"""NCCL's group keeps references to the tensors it works on; before, record_stream kept their memory (#148590)."""

# Other kernels
FAST_LAYER_NORM_BACKWARD: Final = (2, 8)
"""Weight gradients of many short rows are summed in blocks first (#150625)."""
FUSED_RMS_NORM: Final = (2, 9)
"""One kernel; before, ordinary ops (#153666)."""
TOPK_KEEPS_SUMS: Final = (2, 10)
"""Cumulative digit counts lie in memory of their own, and no semaphores (#164459)."""
TOPK_TWO_BUFFERS: Final = (2, 7)
"""What is looked for in a slice is kept twice, for reading and for writing."""
ATOMIC_EMBEDDING_BACKWARD: Final = (2, 11)
"""Few long segments are added up in place (#172454)."""

CACHED_CASTS_ARE_TRAINED: Final = (2, 11)
"""Autocast keeps a cast of a weight with its gradient also where it was made under no_grad, and none in inference mode
(#158232)."""

NORMAL_OF_HALF_FILLS_ITS_LAST_BLOCK: Final = (2, 12)
"""Normal numbers in half precision: 100 take 116 words of the host's generator under 2.11 and 112 under 2.14; which of
the two 2.12 and 2.13 take was not looked at."""
TRUNCATED_NORMAL_DRAWS_AGAIN: Final = (2, 12)
"""nn.init.trunc_normal_ draws anew what lies outside; before, uniform numbers were drawn once (#174997)."""

CUDNN_OF_WHEEL: Final = {
    (2, 6): 90100,
    (2, 7): 90501,
    (2, 8): 91002,
    (2, 9): 91002,
    (2, 10): 91002,
    (2, 11): 91900,
    (2, 12): 92000,
    (2, 13): 92000,
    (2, 14): 92400,
}
"""The cuDNN that `pip install torch` brings, for machines whose torch is a CPU build."""


def version_of(text: str) -> Version:
    """(2, 11) of "2.11.0+cu130"."""
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise ValueError(f"not a version of torch: {text!r}")
    return int(match.group(1)), int(match.group(2))


def in_words(version: Version) -> str:
    return ".".join(str(part) for part in version)


def why_not(text: str) -> str | None:
    """Why nothing can be predicted with this version of torch, in one line; None where it can."""
    if version_of(text) >= OLDEST:
        return None
    return (
        f"torch {text} is too old: vramcast predicts for torch {in_words(OLDEST)} and newer. Install one beside your "
        f"project, in an environment of its own: pip install vramcast 'torch>={in_words(OLDEST)}'"
    )


def what_is_assumed(text: str) -> str | None:
    """What a reader must know of a version that is newer than all that were checked."""
    if version_of(text) <= NEWEST:
        return None
    return f"{text} is newer than any version vramcast was checked with: the rules of {in_words(NEWEST)} are used"
