"""How much workspace cuDNN's choice for a convolution takes, fitted to its heuristics.

What cuDNN takes has few reasons:
- *converted copies*: its tensor-core kernels read channels-last tensors whose channels are padded to 16 bytes; a
  tensor that is not like that is copied, so a contiguous (NCHW) convolution takes a copy of x, w and y;
- *one product for each image*: a 1x1 convolution of contiguous tensors is a batched matrix product, without copies;
  its weight gradient keeps one fp32 gradient for each image of the batch, then adds them up;
- *partial sums*: where the result has too few tiles to fill the card, the long dimension is split and each part keeps
  an fp32 tile;
- nothing at all: direct kernels.
Which of them happens is decided by cuDNN's heuristics, a black box. The forests in `cudnn_fit.bin` are trained on
its answers (the file's header says which version and card): one forest says which tensors are copied, a second the
bytes of the partial sums.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from vramcast.card.libraries.problem import ConvolutionProblem

DATA_FILE = "cudnn_fit.bin"
ALIGNMENT_BYTES = 16  # of a row of channels, for the tensor-core kernels
MEASURED_ARCHITECTURE = "sm_90"
FIRST_LAYER_CHANNELS = 4
DEPTHWISE_CHANNELS, DEPTHWISE_PARTS = 64, 8
PARTIALS_FLOOR_BYTES = 32768  # partial sums are fitted as log2(bytes + this)
PARTIALS_NOISE_BYTES = 65536  # less than this is not worth predicting
_LEAF = 255


@dataclass(frozen=True, slots=True)
class Recipe:
    """Which tensors are copied, and whether each image has its own weight gradient.

    x, w, y: 0 not copied, 1 as it is, 2 with channels padded to 16 bytes, 3 padded to four channels (first layers).
    per_image_weight: 1 for one fp32 gradient an image, 2 for the depthwise kernel that keeps eight.
    """

    x: int
    w: int
    y: int
    per_image_weight: int


WEIGHT_PER_IMAGE, EIGHT_WEIGHTS_PER_IMAGE = Recipe(0, 0, 0, 1), Recipe(0, 0, 0, 2)


def copies_bytes(problem: ConvolutionProblem, recipe: Recipe) -> int:
    """The bytes of a recipe for one convolution."""
    item, groups = problem.item_bytes, problem.groups
    c, k = problem.w[1], problem.w[0] // groups
    x, w, y = (item * math.prod(shape) for shape in (problem.x, problem.w, problem.y))
    total = 0
    if recipe.x:
        total += x // c * _padded(c, item, recipe.x)
    if recipe.w:
        total += w // (c * k) * _padded(c, item, recipe.w) * _padded(k, item, recipe.w)
    if recipe.y:
        total += y // k * _padded(k, item, recipe.y)
    if recipe.per_image_weight == 1:
        total += problem.x[0] * w // item * 4
    elif recipe.per_image_weight == 2:
        channels = -(-problem.w[0] // DEPTHWISE_CHANNELS) * DEPTHWISE_CHANNELS
        total += problem.x[0] * channels * c * math.prod(problem.w[2:]) * 4 * DEPTHWISE_PARTS
    return total


def _padded(channels: int, item_bytes: int, how: int) -> int:
    width = (1, 1, ALIGNMENT_BYTES // item_bytes, FIRST_LAYER_CHANNELS)[how]
    return -(-channels // width) * width


def features(problem: ConvolutionProblem, sm_count: int) -> list[float]:
    """What the forests decide on, in a fixed order."""
    x, w, y = problem.x, problem.w, problem.y
    groups, item = problem.groups, problem.item_bytes
    c, k = w[1], w[0] // groups
    taps, in_area, out_area, batch = math.prod(w[2:]), math.prod(x[2:]), math.prod(y[2:]), x[0]
    if problem.operation == "forward":
        rows, columns, depth = batch * out_area, k, c * taps
    elif problem.operation == "backward_data":
        rows, columns, depth = batch * in_area, c, k * taps
    else:
        rows, columns, depth = k, c * taps, batch * out_area
    area = in_area if problem.operation == "backward_data" else out_area
    if problem.operation == "backward_weight":
        image_tiles = batch * _tiles(k, 128) * _tiles(c, 128)
    else:
        image_tiles = batch * _tiles(area, 128) * _tiles(columns, 128)
    x_bytes, w_bytes, y_bytes = item * math.prod(x), item * math.prod(w), item * math.prod(y)
    tiles = [_tiles(rows, a) * _tiles(columns, b) * groups for a, b in ((128, 128), (256, 128), (128, 64))]
    same = all(2 * p == d * (n - 1) for p, d, n in zip(problem.padding, problem.dilation, w[2:], strict=True))
    pointwise = taps == 1 and max(problem.stride) == 1 and max(problem.padding) == 0
    total = x_bytes + w_bytes + y_bytes
    return [
        float(problem.dtype == "bfloat16"), float(len(x) == 5), float(len(x) == 4 and x[2] == 1),
        _log2(batch), _log2(c), _log2(k), _log2(groups), float(c == 1 and groups > 1),
        _twos(c), _twos(k), _twos(in_area), _twos(out_area), _twos(x[-1]), _twos(y[-1]), _twos(batch),
        taps, max(w[2:]), min(w[2:]), max(problem.stride), max(problem.dilation), max(problem.padding),
        min(problem.padding), float(same), float(pointwise),
        _log2(in_area), _log2(out_area), x[-2], x[-1], y[-1], x[2], _log2(batch * out_area), _log2(batch * in_area),
        _log2(rows), _log2(columns), _log2(depth), _log2(rows) + _log2(columns) + _log2(depth) + _log2(groups),
        _log2(tiles[0] / sm_count), _fill(tiles[0], sm_count), _fill(tiles[1], sm_count), _fill(tiles[2], sm_count),
        _log2(image_tiles / sm_count), _fill(image_tiles, sm_count),
        area / (128 * _tiles(area, 128)), k / (128 * _tiles(k, 128)), c / (128 * _tiles(c, 128)),
        k / (64 * _tiles(k, 64)), c / (64 * _tiles(c, 64)),
        _log2(x_bytes), _log2(w_bytes), _log2(y_bytes), _log2(x_bytes / y_bytes), _log2(w_bytes / x_bytes),
        _log2(w_bytes / y_bytes), _log2(rows * columns * depth * groups / total),
        float(all(s == n for s, n in zip(problem.stride, w[2:], strict=True))), float(len(set(w[2:])) > 1),
        _log2(batch * w_bytes / total), c, k, groups,
    ]  # fmt: skip


def _tiles(extent: int, tile: int) -> int:
    return -(-extent // tile)


def _fill(tiles: int, sm_count: int) -> float:
    """The share of the last wave of tiles that is busy, over all waves."""
    waves = tiles / sm_count
    return waves / math.ceil(waves)


def _log2(value: float) -> float:
    return math.log2(max(value, 1e-9))


def _twos(value: int) -> int:
    return min((value & -value).bit_length() - 1, 9)


class Forest:
    """Binary trees in preorder: the left child follows its parent, the way to the right child is stored."""

    def __init__(self, feature: array[int], threshold: array[float], right: array[int], roots: Sequence[int]) -> None:
        self._feature, self._threshold, self._right, self._roots = feature, threshold, right, roots

    def leaves(self, values: Sequence[float]) -> list[float]:
        """What each tree says."""
        leaves = []
        for root in self._roots:
            node = root
            while self._feature[node] != _LEAF:
                node += 1 if values[self._feature[node]] <= self._threshold[node] else self._right[node]
            leaves.append(self._threshold[node])
        return leaves


@dataclass(frozen=True, slots=True)
class _Model:
    recipes: tuple[Recipe, ...]
    chooser: Forest
    partials: Forest


def group_name(problem: ConvolutionProblem) -> str:
    """Each combination of operation, kind of arithmetic and layout has forests of its own."""
    if problem.item_bytes == 2:
        arithmetic = "half"
    else:
        arithmetic = "tf32" if problem.tf32 and problem.dtype == "float32" else "fp32"
    return f"{problem.operation}/{arithmetic}/{'nhwc' if problem.channels_last else 'nchw'}"


@cache
def _file() -> tuple[dict[str, Any], bytes]:
    data = Path(__file__).with_name(DATA_FILE).read_bytes()
    (length,) = struct.unpack_from("<I", data)
    return json.loads(data[4 : 4 + length]), data[4 + length :]


@cache
def _model(architecture: str, group: str) -> _Model:
    header, body = _file()
    entry = header["models"][architecture][group]
    recipes = tuple(Recipe(*recipe) for recipe in entry["recipes"])
    return _Model(recipes, _forest(entry["chooser"], body), _forest(entry["partials"], body))


def _forest(entry: dict[str, Any], body: bytes) -> Forest:
    """Stored as columns of bytes: features, then the four bytes of thresholds, then those of right children."""
    raw = zlib.decompress(body[entry["offset"] : entry["offset"] + entry["length"]])
    nodes = entry["nodes"]
    threshold, step = array("f"), array("I")
    for column, values in ((1, threshold), (5, step)):
        whole = bytearray(4 * nodes)
        for byte in range(4):
            whole[byte::4] = raw[(column + byte) * nodes : (column + byte + 1) * nodes]
        values.frombytes(bytes(whole))
        if sys.byteorder == "big":
            values.byteswap()
    return Forest(array("B", raw[:nodes]), threshold, step, entry["roots"])


def architecture_of(compute_capability: tuple[int, int], problem: ConvolutionProblem) -> str:
    """The fitted architecture nearest to a card's: the newest that is not newer.

    1x1 convolutions go to the batched matrix product that every architecture has; only on sm_90 could cuDNN be asked
    when it prefers that, so all others are taken to decide as sm_90 does.
    """
    models = _file()[0]["models"]
    if problem.is_pointwise:
        return MEASURED_ARCHITECTURE
    known = sorted(models, key=lambda name: int(name.removeprefix("sm_")))
    version = compute_capability[0] * 10 + compute_capability[1]
    older = [name for name in known if int(name.removeprefix("sm_")) <= version]
    nearest = older[-1] if older else known[0]
    return nearest if group_name(problem) in models[nearest] else MEASURED_ARCHITECTURE


@dataclass(frozen=True, slots=True)
class FittedWorkspace:
    """Copies of operands, and partial sums."""

    copies_bytes: int
    partials_bytes: int


@lru_cache(maxsize=50_000)
def fitted_workspace(
    problem: ConvolutionProblem, compute_capability: tuple[int, int], sm_count: int
) -> FittedWorkspace:
    """The workspace of the plan that cuDNN's heuristics put first."""
    model = _model(architecture_of(compute_capability, problem), group_name(problem))
    values = features(problem, sm_count)
    votes: dict[float, int] = {}
    for leaf in model.chooser.leaves(values):
        votes[leaf] = votes.get(leaf, 0) + 1
    recipe = model.recipes[int(max(votes, key=lambda leaf: votes[leaf]))]
    logs = model.partials.leaves(values)
    partials = int(2 ** (sum(logs) / len(logs))) - PARTIALS_FLOOR_BYTES
    return FittedWorkspace(copies_bytes(problem, recipe), partials if partials > PARTIALS_NOISE_BYTES else 0)
