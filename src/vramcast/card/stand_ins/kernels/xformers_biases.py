"""Biases and masks of xformers' attention (ops/fmha/attn_bias.py of version 0.0.34)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class AttentionBias:
    HOLDS_DENSE_TENSOR = False


class LowerTriangularMask(AttentionBias):
    def __init__(self, *args: Any, **options: Any) -> None: ...

    def add_bias(self, bias: Tensor) -> LowerTriangularMaskWithTensorBias:
        return LowerTriangularMaskWithTensorBias(bias)


class LowerTriangularFromBottomRightMask(AttentionBias):
    def make_local_attention(self, window_size: int) -> LowerTriangularFromBottomRightLocalAttentionMask:
        return LowerTriangularFromBottomRightLocalAttentionMask(window_size)


class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularFromBottomRightMask):
    def __init__(self, _window_size: int) -> None:
        self._window_size = _window_size


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    def __init__(self, bias: Tensor) -> None:
        self._bias = bias


@dataclass
class LocalAttentionFromBottomRightMask(AttentionBias):
    window_left: int
    window_right: int


@dataclass
class _SeqLenInfo:
    seqstart: Tensor
    max_seqlen: int
    min_seqlen: int
    seqstart_py: list[int]

    @classmethod
    def from_seqlens(cls, seqlens: Iterable[int], *, device: Any = None) -> _SeqLenInfo:
        lengths, starts = list(seqlens), [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        place = device or ("cuda" if torch.cuda.is_available() else "cpu")
        offsets = torch.tensor(starts, dtype=torch.int32).to(place)
        return cls(offsets, max(lengths, default=-1), min(lengths, default=-1), starts)

    def to(self, device: Any) -> _SeqLenInfo:
        return _SeqLenInfo(self.seqstart.to(device), self.max_seqlen, self.min_seqlen, self.seqstart_py)

    def intervals(self) -> Iterable[tuple[int, int]]:
        return zip(self.seqstart_py, self.seqstart_py[1:], strict=False)

    def split(self, x: Tensor, batch_sizes: Sequence[int] | None = None) -> list[Tensor]:
        sizes = batch_sizes or [1] * (len(self.seqstart_py) - 1)
        ends, place = [], 0
        for size in sizes:
            ends.append(self.seqstart_py[place + size] - self.seqstart_py[place])
            place += size
        return [part.reshape(size, -1, *part.shape[2:]) for size, part in zip(sizes, x.split(ends, dim=1), strict=True)]


@dataclass
class BlockDiagonalMask(AttentionBias):
    q_seqinfo: _SeqLenInfo
    k_seqinfo: _SeqLenInfo
    _batch_sizes: Sequence[int] | None = None

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, *, device: Any = None
    ) -> BlockDiagonalMask:
        queries = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        same = kv_seqlen is None or q_seqlen == kv_seqlen
        return cls(queries, queries if same else _SeqLenInfo.from_seqlens(kv_seqlen or (), device=device))

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[Tensor]) -> tuple[BlockDiagonalMask, Tensor]:
        mask = cls.from_seqlens([length for t in tensors for length in [t.shape[1]] * t.shape[0]])
        mask._batch_sizes = [tensor.shape[0] for tensor in tensors]
        return mask, _concatenated(tensors)

    @classmethod
    def from_tensor_lists_qkv(
        cls, tensors_q: Sequence[Tensor], tensors_k: Sequence[Tensor], tensors_v: Sequence[Tensor] | None = None
    ) -> Any:
        lengths = ([n for t in tensors for n in [t.shape[1]] * t.shape[0]] for tensors in (tensors_q, tensors_k))
        mask = cls.from_seqlens(*lengths)
        mask._batch_sizes = [tensor.shape[0] for tensor in tensors_q]
        values = None if tensors_v is None else _concatenated(tensors_v)
        return mask, _concatenated(tensors_q), _concatenated(tensors_k), values

    def to(self, device: Any) -> BlockDiagonalMask:
        return type(self)(self.q_seqinfo.to(device), self.k_seqinfo.to(device), self._batch_sizes)

    def split_queries(self, tensor: Tensor) -> Sequence[Tensor]:
        return self.q_seqinfo.split(tensor, self._batch_sizes)

    def split_kv(self, tensor: Tensor) -> Sequence[Tensor]:
        return self.k_seqinfo.split(tensor, self._batch_sizes)

    split = split_queries

    def make_causal(self) -> BlockDiagonalCausalMask:
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_causal_from_bottomright(self) -> BlockDiagonalCausalFromBottomRightMask:
        return BlockDiagonalCausalFromBottomRightMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_local_attention(self, window_size: int) -> BlockDiagonalCausalLocalAttentionMask:
        return BlockDiagonalCausalLocalAttentionMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes, window_size)


def _concatenated(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(1, -1, *tensor.shape[2:]) for tensor in tensors], dim=1)


class BlockDiagonalCausalMask(BlockDiagonalMask): ...


class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask): ...


@dataclass
class BlockDiagonalCausalLocalAttentionMask(BlockDiagonalCausalMask):
    _window_size: int = 0


_CAUSAL = (
    LowerTriangularMask,
    LowerTriangularFromBottomRightMask,
    BlockDiagonalCausalMask,
    BlockDiagonalCausalFromBottomRightMask,
)
_FROM_BOTTOM_RIGHT = (LowerTriangularFromBottomRightMask, BlockDiagonalCausalFromBottomRightMask)


def is_causal(bias: Any) -> bool:
    return isinstance(bias, _CAUSAL)


def mask_type(bias: Any) -> int:
    """custom_mask_type of PyTorch's CUTLASS kernels."""
    return (2 if isinstance(bias, _FROM_BOTTOM_RIGHT) else 1) if is_causal(bias) else 0


def window(bias: Any) -> tuple[int, int]:
    if isinstance(bias, LocalAttentionFromBottomRightMask):
        return bias.window_left, bias.window_right
    size = getattr(bias, "_window_size", 0)
    return (size - 1 if size else -1), -1


def bias_tensor(bias: Any) -> Tensor | None:
    """What is added to the products, where the bias is a tensor."""
    if isinstance(bias, LowerTriangularMaskWithTensorBias):
        return bias._bias
    return bias if isinstance(bias, Tensor) else None
