"""bitsandbytes' operators on weights of 8 or 4 bits: unpack, pack, and products with packed weights."""

from __future__ import annotations

from math import prod

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.families.gemm import product
from vramcast.timing.costs.part import Part
from vramcast.timing.costs.signature import Arguments, Tensor, item_bytes

# Up to this many rows a product reads the packed weight itself (`_GEMM_4BIT_CUSTOM_FLOOR_M` in bitsandbytes 0.50);
# beyond, the weight is unpacked first. Between the two, libraries choose by shape, and neither is far ahead.
_ROWS_WITHOUT_UNPACKING = 4


def _streamed(kind: str, card: Card, moved: float, kernels: int = 1) -> Part:
    return Part(kind, max(moved / card.bandwidth, 1e-10), 0.0, moved, kernels=kernels)


def _read(args: Arguments) -> float:
    return float(sum(tensor.nbytes for tensor in args.tensors if tensor.device == "cuda"))


def _dtype(args: Arguments, index: int) -> str:
    value = args.args[index] if index < len(args.args) else args.kwargs.get("dtype")
    return value if isinstance(value, str) else "f32"


def unpack_4bit(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """dequantize_4bit(codes, scales, block, kind, shape, dtype)"""
    return [_streamed("dequantize", card, _read(args) + prod(args.integers(4)) * item_bytes(_dtype(args, 5)))]


def unpack(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """dequantize_blockwise(codes, scales, table, block, dtype): a byte for each element."""
    codes = args.tensor(0)
    if codes is None:
        return []
    return [_streamed("dequantize", card, _read(args) + codes.numel * item_bytes(_dtype(args, 4)))]


def pack(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """quantize_4bit, quantize_blockwise, int8_vectorwise_quant: at most a byte written for each element."""
    x = args.tensor(0)
    return [] if x is None else [_streamed("quantize", card, _read(args) + x.numel)]


def product_4bit(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """gemm_4bit and gemv_4bit(rows, codes, shape of the weight, …)"""
    rows, sizes = args.tensor(0), args.integers(2)
    if rows is None or len(sizes) != 2 or not rows.shape:
        return []
    out_features, in_features = sizes
    count = rows.numel // max(in_features, 1)
    if count <= _ROWS_WITHOUT_UNPACKING:
        return [_streamed("gemv", card, _read(args) + count * out_features * rows.item)]
    weight = Tensor(rows.dtype, (in_features, out_features), (1, in_features))
    unpacked = _streamed("dequantize", card, _read(args) - rows.nbytes + weight.nbytes)
    return [unpacked, product(card, Tensor(rows.dtype, (count, in_features)), weight, tf32=tf32)]


def product_int8(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """int8_linear_matmul and int8_scaled_mm(rows, weight, …), weight as (out, in); tensor cores take bytes at least
    as fast as half floats."""
    rows, weight = args.tensor(0), args.tensor(1)
    if rows is None or weight is None or len(weight.shape) != 2 or not rows.shape:
        return []
    out_features, in_features = weight.shape
    flat = Tensor("f16", (rows.numel // max(in_features, 1), in_features))
    return [product(card, flat, Tensor("f16", (in_features, out_features), (1, in_features)), tf32=tf32)]


FAMILY = {
    "dequantize_4bit": unpack_4bit, "dequantize_blockwise": unpack, "quantize_4bit": pack, "quantize_blockwise": pack,
    "int8_vectorwise_quant": pack, "int8_vectorwise_dequant": pack, "int8_double_quant": pack,
    "int8_mm_dequant": pack, "gemm_4bit": product_4bit, "gemv_4bit": product_4bit,
    "int8_linear_matmul": product_int8, "int8_scaled_mm": product_int8,
}  # fmt: skip
