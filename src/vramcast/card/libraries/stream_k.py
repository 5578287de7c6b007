"""The partial sums of cuDNN's sm_90 convolution kernels.

They are persistent: as many clusters of blocks as the card holds at once share the tiles of the result. Full waves of
tiles need nothing. The tiles of the last wave, when they are few enough, are split along the reduction: each part
keeps an fp32 tile, and a tree of flags says which parts are added already.

Asked without a device, cuDNN takes the card to hold one 18-multiprocessor group. So the answer is the workspace of
the same plan on a smaller card, and what this module knows is how it grows with the card. How many parts pay off for a
short reduction is cuDNN's own judgement: it is asked, for a small problem with the same tile and the same depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from vramcast.card.libraries.problem import ConvolutionProblem

# cudnnBackendKnobType_t
TILE_SIZE, WORKSPACE, CLUSTER_M, CLUSTER_N = 2, 25, 27, 28
TILES = {
    0: (128, 128), 1: (128, 64), 3: (256, 128), 4: (256, 64), 5: (64, 64), 6: (128, 256), 7: (64, 128), 9: (64, 256),
    18: (64, 192), 19: (128, 192),
}  # fmt: skip
K_BLOCK_BYTES = 128
ASKED_MULTIPROCESSORS = 18
MEASURED_MULTIPROCESSORS = 132
# Clusters of a size that an H200 holds at once; what it leaves idle depends on how its multiprocessors are grouped.
MEASURED_CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15, 12: 7, 16: 7}
ALIGNMENT_BYTES, FLAG_BYTES, FLAGS_ALWAYS = 127, 4, 8
LONG_REDUCTION, SPLIT_LEVEL_COST, SPLIT_FIRST_COST = 33, 16, 13

# (problem, multiprocessors) -> workspace of the same plan, or None when cuDNN cannot say
Ask = Callable[[ConvolutionProblem, int], int | None]


def resident_clusters(size: int, sm_count: int) -> int:
    """How many clusters of `size` blocks the card runs at once."""
    measured = MEASURED_CLUSTERS.get(size, MEASURED_MULTIPROCESSORS * 7 // (8 * size))
    return max(1, measured * sm_count // MEASURED_MULTIPROCESSORS)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A problem cut into tiles."""

    tile: tuple[int, int]
    cluster: int
    cluster_tiles: int
    depth: int  # blocks of the reduction
    splits_allowed: bool

    @property
    def tile_bytes(self) -> int:
        return self.tile[0] * self.tile[1] * 4


def partial_sums(problem: ConvolutionProblem, knobs: dict[int, int], sm_count: int, ask: Ask) -> int | None:
    """Bytes on a card with `sm_count` multiprocessors less those in cuDNN's answer; None: not such a plan."""
    plan = _plan(problem, knobs)
    if plan is None:
        return None
    here = _workspace(plan, resident_clusters(plan.cluster, sm_count), problem, ask)
    asked = _workspace(plan, ASKED_MULTIPROCESSORS // plan.cluster, problem, ask)
    return None if here is None or asked is None else here - asked


def _plan(problem: ConvolutionProblem, knobs: dict[int, int]) -> _Plan | None:
    tile = TILES.get(knobs.get(TILE_SIZE, -1))
    if tile is None or CLUSTER_M not in knobs or CLUSTER_N not in knobs:
        return None
    block = K_BLOCK_BYTES // problem.item_bytes
    groups = problem.groups
    taps, batch, c, k = math.prod(problem.w[2:]), problem.x[0], problem.w[1], problem.w[0] // groups
    if problem.operation == "backward_weight":
        # Small groups share a tile of the weight.
        rows = _ceil(k * groups, tile[0]) if k < tile[0] else groups * _ceil(k, tile[0])
        columns = _ceil(c, tile[1]) * taps
        depth = _ceil(batch * math.prod(problem.y[2:]), block)
    elif problem.operation == "forward":
        rows, columns = _ceil(batch * math.prod(problem.y[2:]), tile[0]), groups * _ceil(k, tile[1])
        depth = _ceil(c, block) * taps
    else:
        rows, columns = _ceil(batch * math.prod(problem.x[2:]), tile[0]), groups * _ceil(c, tile[1])
        depth = _ceil(k, block) * taps
    m, n = knobs[CLUSTER_M], knobs[CLUSTER_N]
    return _Plan(tile, m * n, _ceil(rows, m) * _ceil(columns, n), depth, knobs.get(WORKSPACE) == 0)


def _workspace(plan: _Plan, clusters: int, problem: ConvolutionProblem, ask: Ask) -> int | None:
    clusters = max(1, clusters)
    waves, rest = _ceil(plan.cluster_tiles, clusters), plan.cluster_tiles % clusters
    counter = 1 if waves > 2 else 0
    splits: int | None = 1
    if plan.splits_allowed and rest:
        splits = _splits(plan, clusters // rest, waves > 1, problem, ask)
    if splits is None:
        return None
    if splits == 1:
        return ALIGNMENT_BYTES + FLAG_BYTES if counter else 0
    tiles = rest * plan.cluster
    flags = FLAGS_ALWAYS + tiles * _tree_nodes(splits) + counter
    return ALIGNMENT_BYTES + FLAG_BYTES * flags + splits * tiles * plan.tile_bytes


def _splits(plan: _Plan, most: int, after_full_waves: bool, problem: ConvolutionProblem, ask: Ask) -> int | None:
    """Into how many parts the reduction of a tile is split, at most `most`."""
    if most <= 1:
        return 1
    limit = min(most, ASKED_MULTIPROCESSORS)
    asked = ask(_like(problem, plan, limit + 1 if after_full_waves else 1), limit)
    if asked is None:
        return None
    splits = max(1, asked // plan.tile_bytes)
    if most <= ASKED_MULTIPROCESSORS:
        return splits
    depth = plan.depth
    if not after_full_waves:
        return min(most, depth // LONG_REDUCTION) if depth // LONG_REDUCTION >= ASKED_MULTIPROCESSORS else splits
    if _ceil(depth, splits) > _ceil(depth, ASKED_MULTIPROCESSORS):
        return splits  # too short already for that many
    for more in range(ASKED_MULTIPROCESSORS + 1, most + 1):
        iterations, cost = _ceil(depth, more), SPLIT_LEVEL_COST * math.ceil(math.log2(more)) - SPLIT_FIRST_COST
        if iterations < _ceil(depth, splits) and depth - iterations > cost:
            splits = more
    return splits


def _like(problem: ConvolutionProblem, plan: _Plan, tiles: int) -> ConvolutionProblem:
    """A 1x1 convolution of `tiles` tiles, as deep as the plan."""
    rows, narrow, depth = tiles * plan.tile[0], 8, plan.depth * K_BLOCK_BYTES // problem.item_bytes
    if problem.operation == "forward":
        x, w, y = (rows, depth), (narrow, depth), (rows, narrow)
    elif problem.operation == "backward_data":
        x, w, y = (rows, narrow), (depth, narrow), (rows, depth)
    else:
        x, w, y = (depth, narrow), (rows, narrow), (depth, rows)
    ones, zeros = (1, 1), (0, 0)
    return ConvolutionProblem(
        problem.operation, (*x, *ones), (*w, *ones), (*y, *ones), zeros, ones, ones, problem.dtype, True, problem.tf32,
        problem.deterministic,
    )  # fmt: skip


def _tree_nodes(leaves: int) -> int:
    nodes = 0
    while leaves > 1:
        leaves = _ceil(leaves, 2)
        nodes += leaves
    return nodes


def _ceil(value: int, step: int) -> int:
    return -(-value // step)
