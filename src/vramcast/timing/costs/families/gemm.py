"""Matrix products: tiles of the result shared out over the multiprocessors in waves."""

from __future__ import annotations

from math import ceil

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.part import Part, feature
from vramcast.timing.costs.signature import Arguments, Tensor

# Tiles of the result that cuBLAS and cuDNN kernels compute, and how deep one must at least go to be worth splitting.
_TILES = (
    (256, 128),
    (128, 256),
    (192, 128),
    (128, 192),
    (128, 128),
    (128, 64),
    (64, 128),
    (64, 64),
    (64, 32),
    (32, 64),
)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
_LEAST_DEPTH = 128
# A tile of m x n reads m + n elements for m·n products: small ones are fed too slowly. Half the rate is lost where
# m·n / (m + n) is this.
_HALF_RATE_INTENSITY = {"f32": 8.0, "tf32": 16.0}
_DEFAULT_HALF_RATE_INTENSITY = 16.0
# Most of their kernels split the depth and add up by themselves.
_SPLIT_INSIDE = ("gemm-half", "gemm-tf32")


def unit_of(dtype: str, tf32: bool) -> str:
    if dtype == "f32":
        return "tf32" if tf32 else "f32"
    return {"c64": "f32", "c128": "f64"}.get(dtype, dtype)


def tiled_seconds(card: Card, batch: int, m: int, n: int, k: int, unit: str, *, splits: bool = True) -> float:
    """The best that any tile gives, and any split of the depth where there are kernels for it, in whole waves."""
    return tiled(card, batch, m, n, k, unit, splits=splits)[0]


def tiled(card: Card, batch: int, m: int, n: int, k: int, unit: str, *, splits: bool = True) -> tuple[float, int]:
    """The same, and into how many the depth is split: a second kernel adds those up."""
    rate_of_one = card.rate(unit) / card.sms
    half = _HALF_RATE_INTENSITY.get(unit, _DEFAULT_HALF_RATE_INTENSITY)
    best, best_split = float("inf"), 1
    for tile_m, tile_n in _TILES:
        tiles = batch * ceil(m / tile_m) * ceil(n / tile_n)
        intensity = tile_m * tile_n / (tile_m + tile_n)
        a_tile = 2.0 * tile_m * tile_n * (1 + half / intensity) / rate_of_one
        for split in _SPLITS if splits else (1,):
            if split > 1 and (k // split < _LEAST_DEPTH or tiles * (split - 1) >= 2 * card.sms):
                break
            waves = tiles * split / card.sms
            # Stream-K and persistent kernels even out the last of many waves.
            waves = ceil(waves) if waves < 4 else waves + 0.5
            seconds = waves * a_tile * (k / split)
            if seconds < best:
                best, best_split = seconds, split
    return best, best_split


def _inner_is_last(matrix: Tensor) -> bool:
    return matrix.strides is None or matrix.strides[-1] == 1 or matrix.shape[-1] == 1


def alignment(size: int, item: int) -> int:
    """16, 8, 4 or 2: the bytes on which every row begins."""
    for bytes_ in (16, 8, 4):
        if size * item % bytes_ == 0:
            return bytes_
    return 2


def _leading(matrix: Tensor) -> int:
    """The distance of two rows (or columns, where those are contiguous)."""
    if matrix.strides is None:
        return matrix.shape[-1]
    return max(matrix.strides[-1], matrix.strides[-2])


def product(
    card: Card, left: Tensor, right: Tensor, *, tf32: bool, extra: tuple[str, ...] = (), added: float = 0.0
) -> Part:
    """left (…, m, k) times right (…, k, n); `added` is what else it reads."""
    m, k = left.shape[-2:]
    n = right.shape[-1]
    batch = left.numel // max(m * k, 1)
    unit = unit_of(left.dtype, tf32)
    flops = 2.0 * batch * m * n * k * (4 if left.dtype.startswith("c") else 1)
    moved = left.nbytes + right.nbytes + batch * m * n * left.item + added
    aligned = min(alignment(_leading(left), left.item), alignment(_leading(right), right.item), alignment(n, left.item))
    narrow = min(m, n)
    layout = ("n" if _inner_is_last(left) else "t") + ("n" if _inner_is_last(right) else "t")
    kernels = 1
    if narrow == 1 or k == 1:
        kind, base = "gemv", moved / card.bandwidth
    else:
        kind = f"gemm-{'half' if unit in ('f16', 'bf16') else unit}"
        if left.dtype.startswith("c"):
            kind = "gemm-complex"
        elif left.item == 2 and aligned < 16:
            # Rows that begin on odd elements are read one by one.
            kind += "-odd" if aligned == 2 else "-unaligned"
        seconds, split = tiled(card, batch, m, n, k, unit)
        base = max(seconds, moved / card.bandwidth)
        if split > 1 and batch == 1 and kind not in _SPLIT_INSIDE:
            kernels = 2  # the second adds up
    idle = card.sms * 128 * 128 / max(batch * m * n, 1)
    features = (feature("k", k), feature("narrow", narrow), feature("batch", batch), feature("idle", idle))
    tags = (layout, f"align{aligned}" if left.item == 2 else "", "batched" if batch > 1 else "", *extra)
    return Part(kind, base, flops, moved, unit, features, tuple(tag for tag in tags if tag), kernels)


def mm(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    left, right = args.tensor(0), args.tensor(1)
    if left is None or right is None or len(left.shape) < 2 or len(right.shape) < 2:
        return []
    return [product(card, left, right, tf32=tf32)]


def addmm(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    bias, left, right = args.tensor(0), args.tensor(1), args.tensor(2)
    if bias is None or left is None or right is None:
        return []
    return [product(card, left, right, tf32=tf32, extra=("bias",), added=bias.nbytes)]


def scaled_product(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """_scaled_mm: operands of eight bits, at the rate of eight bits."""
    left, right = args.tensor(0), args.tensor(1)
    if left is None or right is None:
        return []
    m, k = left.shape[-2:]
    n = right.shape[-1]
    flops, moved = 2.0 * m * n * k, left.nbytes + right.nbytes + 2.0 * m * n
    base = max(tiled_seconds(card, 1, m, n, k, "f8"), moved / card.bandwidth)
    return [Part("gemm-half", base, flops, moved, "f8", (), ())]


def engine_product(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """TransformerEngine's product, of plain numbers or of numbers of 8 bits."""
    left = args.tensor(0)
    return (scaled_product if left is not None and left.item == 1 else mm)(args, card, tf32, cudnn_tf32)


def vector_product(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """mv, addmv, dot: bound by reading the operands."""
    moved = float(sum(tensor.nbytes for tensor in args.tensors))
    flops = 2.0 * max((tensor.numel for tensor in args.tensors), default=0)
    unit = unit_of(args.tensors[0].dtype, False) if args.tensors else "f32"
    return [Part("gemv", max(moved / card.bandwidth, 1e-9), flops, moved, unit)]


FAMILY = {
    "mm": mm, "bmm": mm, "addmm": addmm, "baddbmm": addmm, "_addmm_activation": addmm, "addbmm": addmm,
    "_scaled_mm": scaled_product, "te_gemm": engine_product,
    "mv": vector_product, "addmv": vector_product, "dot": vector_product, "vdot": vector_product,
}  # fmt: skip
