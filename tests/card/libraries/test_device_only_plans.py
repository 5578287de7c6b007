"""Plans that cuDNN lists only beside a device: what an H200 (cuDNN 9.19) said that each takes."""

from __future__ import annotations

import pytest

from vramcast.card.libraries.cudnn_device_only import device_only_workspace, is_transform
from vramcast.card.libraries.cudnn_query import Refusal
from vramcast.card.libraries.problem import Card, ConvolutionProblem

H200 = Card((9, 0), 132, 62_914_560, 150_109_880_320)
LEGACY, DRIVER = "core_engine.getStatus()", "this->libcuda == nullptr"
Shape = tuple[int, ...]


def _size(
    operation: str, engine: int, x: Shape, w: Shape, y: Shape, pad: Shape, stride: int = 1, dtype: str = "float32",
    last: bool = False, tf32: bool = True, dilation: int = 1, reason: str = LEGACY,
) -> int | None:  # fmt: skip
    problem = ConvolutionProblem(
        operation, x, w, y, pad, (stride,) * 2, (dilation,) * 2, dtype, last, tf32
    )  # fmt: skip
    return device_only_workspace(problem, Refusal(engine, reason), H200)


@pytest.mark.parametrize(
    ("x", "w", "y", "pad", "measured"),
    [
        ((32, 512, 14, 14), (512, 512, 3, 3), (32, 512, 7, 7), 1, 4_953_735_184),
        ((32, 256, 28, 28), (256, 256, 3, 3), (32, 256, 14, 14), 1, 1_356_365_840),
        ((32, 128, 56, 56), (128, 128, 3, 3), (32, 128, 28, 28), 1, 440_549_392),
        ((128, 128, 16, 16), (256, 128, 4, 4), (128, 256, 8, 8), 1, 1_028_128_784),
        ((128, 3, 64, 64), (64, 3, 4, 4), (128, 64, 32, 32), 1, 135_565_328),  # channels are padded
        ((63, 40, 9, 9), (840, 40, 6, 6), (63, 840, 2, 2), 0, 865_415_056),  # the last row is not used
    ],
)
def test_the_gradient_of_the_input_of_a_strided_convolution(
    x: Shape, w: Shape, y: Shape, pad: int, measured: int
) -> None:
    assert _size("backward_data", 50, x, w, y, (pad, pad), stride=2) == measured
    assert _size("backward_data", 50, x, w, y, (pad, pad), stride=2, dtype="bfloat16") is None


def test_one_dimension_takes_the_transforms_of_a_square() -> None:
    """AutoVC's post-net: 131 GiB while a length of 128 is convolved."""
    shape, w = (8, 512, 1, 128), (512, 512, 1, 5)
    assert _size("forward", 3, shape, w, shape, (0, 2)) == 140_682_199_040
    assert _size("backward_weight", 18, shape, w, shape, (0, 2)) == 138_514_792_448
    assert _size("backward_data", 50, shape, w, shape, (0, 2)) is None


def test_groups_a_few_at_a_time() -> None:
    x, w = (42, 2048, 10, 10), (2048, 128, 3, 3)
    assert _size("forward", 3, x, w, x, (1, 1)) == 440_205_440
    assert _size("backward_data", 50, x, w, x, (1, 1)) == 979_173_504
    assert _size("backward_weight", 18, x, w, x, (1, 1)) == 353_599_616
    x, w = (18, 256, 60, 60), (256, 16, 3, 3)
    assert _size("forward", 6, x, w, x, (1, 1), dtype="bfloat16") == 265_715_712
    assert _size("forward", 6, x, w, x, (1, 1), dtype="bfloat16", last=True) is None


def test_transforms_of_five_by_five_filters() -> None:
    assert _size("forward", 6, (1, 16, 7, 7), (16, 16, 5, 5), (1, 16, 7, 7), (2, 2), dtype="float16") == 519_168
    assert (
        _size("backward_data", 7, (5, 24, 16, 16), (40, 24, 5, 5), (5, 40, 16, 16), (2, 2), dtype="bfloat16")
        == 3_417_856
    )
    assert (
        _size("backward_weight", 17, (32, 64, 256, 256), (128, 64, 5, 5), (32, 128, 256, 256), (2, 2)) == 3_498_500_096
    )
    assert _size("backward_weight", 17, (32, 64, 32, 32), (128, 64, 7, 7), (32, 128, 32, 32), (3, 3)) is None


def test_what_the_card_refuses_too() -> None:
    shape = (8, 64, 32, 32)
    assert _size("forward", 3, shape, (64, 64, 3, 3), shape, (2, 2), dilation=2) is None
    assert _size("forward", 3, (8, 64, 300, 300), (64, 64, 3, 3), (8, 64, 300, 300), (1, 1)) is None  # larger than 256
    assert _size("backward_weight", 18, (16, 384, 3, 3), (384, 384, 9, 9), (16, 384, 3, 3), (4, 4)) is None
    patch = (1, 224, 8, 8), (448, 224, 8, 8), (1, 448, 1, 1)
    assert _size("backward_data", 50, *patch, (0, 0), stride=8) is None


def test_kernels_compiled_at_run_time_copy_what_lies_in_another_order() -> None:
    x, w, y = (128, 512, 4, 4), (100, 512, 4, 4), (128, 100, 1, 1)
    assert _size("backward_data", 78, x, w, y, (0, 0), reason=DRIVER) == 7_471_360  # y is the same in both orders
    assert _size("backward_data", 78, x, w, y, (0, 0), reason=DRIVER, last=True) == 0
    assert _size("backward_data", 78, x, w, y, (0, 0), reason=DRIVER, tf32=False) is None
    assert (
        _size("backward_weight", 70, (8, 256, 60, 60), (21, 256, 1, 1), (8, 21, 60, 60), (0, 0), reason=DRIVER) is None
    )
    shape = (64, 256, 16, 16)
    problem = ConvolutionProblem(
        "backward_data", shape, (256, 256, 3, 3), shape, (1, 1), (1, 1), (1, 1), "float32", False, True
    )
    assert is_transform(problem, 50) and not is_transform(problem, 78)
