"""Quantizers: which tensors a quantized tensor holds, and what quantizing takes (`quantizer.cpp`, `cast.cpp`).

One scale a tensor (Float8, delayed or current scaling), for each 32 numbers (MXFP8), or for blocks of 128
(Float8Block). Before Blackwell cuBLAS multiplies numbers of 8 bits in one layout only: what is used both ways is held
transposed too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.kernels.transformer_engine.launches import launch, parts
from vramcast.card.stand_ins.kernels.transformer_engine.names import torch_dtype
from vramcast.card.stand_ins.ops import NotInStandIn, rounded

_MX_BLOCK, _BLOCK = 32, 128
_BULK_ALIGNMENT = {torch.uint8: 256, torch.float32: 16}
Shape = Sequence[int]
Make = Callable[[Shape, torch.dtype], Tensor]


def kind_of(quantizer: Any) -> str:
    """The name of its class, of this or an older version; empty for none."""
    if quantizer is None:
        return ""
    name = type(quantizer).__name__
    if name not in _TENSORS:
        raise NotInStandIn(f"transformer_engine_torch with a {name}", "other recipes of fp8 and no fp8 are known")
    return name


def multiplies_any_layout() -> bool:
    """nvte_is_non_tn_fp8_gemm_supported."""
    major, minor = torch.cuda.get_device_capability()
    return 10 <= major < 12 or 10 * major + minor >= 130


def transposed(shape: Shape) -> list[int]:
    """A matrix of all but the last dimension, on its side."""
    return [*shape[-1:], *shape[:-1]]


def _flat(shape: Shape) -> tuple[int, int]:
    return prod(shape[:-1]), shape[-1] if shape else 1


def _float8(quantizer: Any, shape: Shape, make: Make) -> dict[str, Tensor | None]:
    any_layout = multiplies_any_layout()
    scale = make([1], torch.float32) if kind_of(quantizer) == "Float8Quantizer" else None
    data = make(shape, torch.uint8) if quantizer.rowwise_usage or any_layout else None
    on_its_side = quantizer.columnwise_usage and not any_layout
    transpose = make(transposed(shape), torch.uint8) if on_its_side else None
    scale = make([1], torch.float32) if scale is None else scale
    return {"data": data, "data_transpose": transpose, "fp8_scale_inv": scale}


def _mxfp8(quantizer: Any, shape: Shape, make: Make) -> dict[str, Tensor | None]:
    rows, width = _flat(shape)
    if rows % _MX_BLOCK or width % _MX_BLOCK:
        raise RuntimeError(f"MXFP8 requires tensor dims that are divisible by {_MX_BLOCK} (got shape={list(shape)})")
    row = [rounded(rows, 128), rounded(width // _MX_BLOCK, 4)]
    column = [rounded(rows // _MX_BLOCK, 4), rounded(width, 128)]
    return _both_ways(quantizer, shape, shape, row, column, torch.uint8, make)


def _float8_blocks(quantizer: Any, shape: Shape, make: Make) -> dict[str, Tensor | None]:
    rows, width = _flat(shape)
    row_blocks, width_blocks = -(-rows // _BLOCK), -(-width // _BLOCK)
    if quantizer.block_scaling_dim == 2:
        row, column = [row_blocks, rounded(width_blocks, 4)], [width_blocks, rounded(row_blocks, 4)]
    else:
        row, column = [width_blocks, rounded(rows, 4)], [row_blocks, rounded(width, 4)]
    return _both_ways(quantizer, shape, transposed(shape), row, column, torch.float32, make)


def _both_ways(
    quantizer: Any, shape: Shape, column_shape: Shape, row_scales: Shape, column_scales: Shape, scales: torch.dtype,
    make: Make,
) -> dict[str, Tensor | None]:  # fmt: skip
    row, column = quantizer.rowwise_usage, quantizer.columnwise_usage
    made: dict[str, Tensor | None] = {"rowwise_data": None, "rowwise_scale_inv": None}
    if row:
        made = {"rowwise_data": make(shape, torch.uint8), "rowwise_scale_inv": make(row_scales, scales)}
    return made | {
        "columnwise_data": make(column_shape, torch.uint8) if column else None,
        "columnwise_scale_inv": make(column_scales, scales) if column else None,
    }


_TENSORS: dict[str, tuple[Callable[..., dict[str, Tensor | None]], str]] = {
    "Float8Quantizer": (_float8, "Float8Tensor"),
    "Float8CurrentScalingQuantizer": (_float8, "Float8Tensor"),
    "MXFP8Quantizer": (_mxfp8, "MXFP8Tensor"),
    "Float8BlockQuantizer": (_float8_blocks, "Float8BlockwiseQTensor"),
}
"""What each makes, and the class of TransformerEngine that holds it."""


def create(
    quantizer: Any, shape: Shape, dtype: torch.dtype, device: Any = "cuda", *, pin_memory: bool = False,
    make: Make | None = None,
) -> Any:  # fmt: skip
    """A quantized tensor without content, or a plain one where there is no quantizer (`create_tensor`)."""

    def empty(size: Shape, of: torch.dtype) -> Tensor:
        return torch.empty(list(size), dtype=of, device=device, pin_memory=pin_memory)

    kind = kind_of(quantizer)
    if not kind:
        return empty(shape, dtype)
    tensors, name = _TENSORS[kind]
    made: dict[str, Any] = dict(tensors(quantizer, shape, make or empty))
    made |= {"fp8_dtype": quantizer.dtype, "quantizer": quantizer, "fake_dtype": dtype}
    if kind == "Float8BlockQuantizer":
        made["is_2D_scaled"] = quantizer.block_scaling_dim == 2
    elif kind == "MXFP8Quantizer":
        made["with_gemm_swizzled_scales"] = getattr(quantizer, "optimize_for_gemm", False)
    return _wrap(name, made, quantizer.internal, shape, dtype, device)


def _wrap(name: str, made: dict[str, Any], internal: bool, shape: Shape, dtype: torch.dtype, device: Any) -> Any:
    from transformer_engine.pytorch import tensor as classes  # type: ignore[import-not-found]

    if internal:
        return getattr(classes, f"{name}Storage")(**made)
    del made["fake_dtype"]
    return getattr(classes, name)(shape=list(shape), dtype=dtype, device=torch.device(device), **made)


def fill(quantizer: Any, source: Tensor, target: Any, *, amax: Tensor | None = None) -> None:
    """Quantize into a tensor that is there (`Quantizer::quantize`, with `quantize_with_amax`)."""
    if source.numel() == 0:
        return
    held = None
    if kind_of(quantizer) == "Float8CurrentScalingQuantizer":  # the largest number of all, then the scale
        held = source.new_empty(2 if amax is None else 1, dtype=torch.float32)
        launch([source], [held])
    launch([source], parts(target))
    del held


def quantize(tensor: Tensor, quantizer: Any, output: Any = None, noop: Any = None) -> Any:
    if quantizer is None:
        return tensor
    tensor = tensor.contiguous()
    if output is None:
        output = create(quantizer, tensor.shape, tensor.dtype, tensor.device)
    else:
        _complete(quantizer, output)
    fill(quantizer, tensor, output)
    return output


def _complete(quantizer: Any, tensor: Any) -> None:
    """`convert_and_update_tensor`: a tensor of one scale that is used again gets or loses its transpose."""
    if not hasattr(tensor, "_transpose"):
        return
    any_layout = multiplies_any_layout()
    needs_data = quantizer.rowwise_usage or any_layout
    needs_transpose = quantizer.columnwise_usage and not any_layout
    data, transpose = tensor._data, tensor._transpose
    shape = list(data.shape) if data is not None else [*transpose.shape[1:], transpose.shape[0]]
    device = (data if data is not None else transpose).device
    if not needs_data:
        tensor._data = None
    elif data is None:
        tensor._data = torch.empty(shape, dtype=torch.uint8, device=device)
    if not needs_transpose:
        tensor._transpose = None
    elif transpose is None:
        tensor._transpose = torch.empty(transposed(shape), dtype=torch.uint8, device=device)
    tensor._transpose_invalid = not needs_transpose


def create_empty_quantized_tensor(
    quantizer: Any, shape: Shape, dtype: torch.dtype, device: Any, pin_memory: bool = False
) -> Any:
    return create(quantizer, shape, dtype, device, pin_memory=pin_memory)


def multi_tensor_quantize(tensors: Sequence[Tensor], quantizers: Sequence[Any]) -> list[Any]:
    made = [create(q, t.shape, t.dtype, t.device) for t, q in zip(tensors, quantizers, strict=True)]
    for tensor, quantizer, target in zip(tensors, quantizers, made, strict=True):
        fill(quantizer, tensor, target)
    return made


def split_quantize(
    tensor: Tensor, sections: Shape, quantizers: Sequence[Any], disable_bulk_allocation: bool = False
) -> list[Any]:
    """A part for each expert; scales by blocks and their numbers lie in one allocation for all parts."""
    tensor = tensor.contiguous()
    pieces = torch.split(tensor, list(sections))
    kinds = {kind_of(quantizer) for quantizer in quantizers}
    if disable_bulk_allocation or kinds not in ({"MXFP8Quantizer"}, {"Float8BlockQuantizer"}):
        return multi_tensor_quantize(pieces, quantizers)
    bulk = _Bulk(tensor.device)
    for piece, quantizer in zip(pieces, quantizers, strict=True):
        create(quantizer, piece.shape, piece.dtype, tensor.device, make=bulk.measure)
    made = [
        create(quantizer, piece.shape, piece.dtype, tensor.device, make=bulk.take)
        for piece, quantizer in zip(pieces, quantizers, strict=True)
    ]
    for piece, quantizer, target in zip(pieces, quantizers, made, strict=True):
        fill(quantizer, piece, target)
    return made


class _Bulk:
    """`bulk_allocate`: all numbers with their scales in one tensor. Those of rows and those of columns are two in the
    original, one here."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._bytes, self._given = device, 0, 0
        self._whole: Tensor | None = None

    def measure(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        self._bytes = rounded(self._bytes, _BULK_ALIGNMENT[dtype]) + prod(shape) * dtype.itemsize
        return torch.empty(0)

    def take(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        if self._whole is None:
            self._whole = torch.empty(self._bytes, dtype=torch.uint8, device=self._device)
        begin = rounded(self._given, _BULK_ALIGNMENT[dtype])
        self._given = begin + prod(shape) * dtype.itemsize
        return self._whole[begin : self._given].view(dtype).view(list(shape))


def dequantize(tensor: Any, dtype: Any) -> Tensor:
    held = parts(tensor)
    out = torch.empty(tensor.size(), dtype=torch_dtype(dtype), device=held[0].device)
    launch(held, [out])
    return out


def fp8_transpose(data: Tensor, dtype: Any, *, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = torch.empty(transposed(data.shape), dtype=torch.uint8, device=data.device)
    launch([data], [out])
    return out


def swap_first_dims(tensor: Tensor, *, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = tensor.new_empty((tensor.shape[1], tensor.shape[0], *tensor.shape[2:]))
    launch([tensor.contiguous()], [out])
    return out


def compute_amax(tensor: Tensor, amax: Tensor) -> None:
    launch([tensor.contiguous()], [amax])


def fused_amax_and_scale_update_after_reduction(
    reduced: Tensor, histories: list[Tensor], scales: list[Tensor], *settings: Any
) -> None:
    launch([reduced, *histories], scales)
