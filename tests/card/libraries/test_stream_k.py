"""Partial sums of sm_90 convolutions: what cuDNN said on an H200, against its answer without one."""

from __future__ import annotations

import pytest

from vramcast.card.libraries.convolution import cudnn_workspace_bytes
from vramcast.card.libraries.cudnn_installed import open_cudnn
from vramcast.card.libraries.cudnn_query import CudnnDevice
from vramcast.card.libraries.problem import Card, ConvolutionProblem
from vramcast.card.libraries.stream_k import partial_sums, resident_clusters

H200 = Card((9, 0), 132, 62_914_560, 150_109_880_320)
TILE_128x128_ALONE = {2: 0, 13: 0, 18: 1, 25: 0, 27: 1, 28: 1}
needs_cudnn = pytest.mark.skipif(open_cudnn() is None, reason="no cuDNN from 9.8 on is installed")


def _weight_gradient(batch: int, channels: int, size: int, taps: int, dtype: str = "float32") -> ConvolutionProblem:
    x, pad = (batch, channels, size, size), taps // 2
    return ConvolutionProblem(
        "backward_weight", x, (channels, channels, taps, taps), x, (pad, pad), (1, 1), (1, 1), dtype, True, True
    )


def _asked(problem: ConvolutionProblem, sm_count: int) -> int | None:
    """One tile, or one more tile than multiprocessors: as many parts as they allow."""
    return 128 * 128 * 4 * sm_count


def test_few_tiles_are_split_over_the_card() -> None:
    # 9 tiles: 14 parts of each fit 132 multiprocessors, 2 parts fit the 18 that cuDNN assumes without a device.
    tile = 128 * 128 * 4
    flags = {14: 9 * (7 + 4 + 2 + 1), 2: 9}
    assert partial_sums(_weight_gradient(128, 128, 128, 3), TILE_128x128_ALONE, 132, _asked) == (
        9 * 14 * tile + 4 * flags[14] - 9 * 2 * tile - 4 * flags[2]
    )


def test_full_waves_need_nothing() -> None:
    same = {**TILE_128x128_ALONE, 25: 1}
    assert partial_sums(_weight_gradient(128, 128, 128, 3), same, 132, _asked) == 0


def test_plans_of_another_kind_are_left_alone() -> None:
    assert partial_sums(_weight_gradient(128, 128, 128, 3), {2: 99}, 132, _asked) is None


def test_clusters_scale_with_the_card() -> None:
    assert resident_clusters(1, 132) == 132
    assert resident_clusters(2, 66) == 33
    assert resident_clusters(16, 4) == 1


@needs_cudnn
def test_as_on_the_card() -> None:
    assert cudnn_workspace_bytes(_weight_gradient(128, 128, 128, 3), H200) == 8_258_199


@needs_cudnn
@pytest.mark.parametrize(
    ("batch", "size", "on_card"),
    [(25, 8, 10_551_312), (25, 16, 35_914_047), (75, 8, 27_328_735), (75, 16, 102_826_735)],
)
def test_groups_have_tiles_of_their_own(batch: int, size: int, on_card: int) -> None:
    """Weight gradients of 16 tasks at once (lab/practice/scripts/maml_functional.py), as an H200 took them."""
    x, y = (batch, 1024, size, size), (batch, 1024, size // 2, size // 2)
    grouped = ConvolutionProblem(
        "backward_weight", x, (1024, 64, 3, 3), y, (1, 1), (2, 2), (1, 1), "float32", False, True
    )
    assert cudnn_workspace_bytes(grouped, H200) == on_card


@needs_cudnn
def test_what_cudnn_dropped_for_want_of_a_device_is_known() -> None:
    library = open_cudnn()
    assert library is not None
    x, y = (32, 256, 14, 14), (32, 1024, 14, 14)
    pointwise = ConvolutionProblem("forward", x, (1024, 256, 1, 1), y, (0, 0), (1, 1), (1, 1), "bfloat16", False, True)
    choice = library.choice(pointwise, CudnnDevice((9, 0), 132, 62_914_560, 150_109_880_320))
    assert choice is not None
    assert any("engine_iface->getStatus()" in refusal.reasons for refusal in choice.refused)
    assert cudnn_workspace_bytes(pointwise, H200) == 0  # cuBLAS runs it, without copies
