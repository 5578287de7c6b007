"""Convolution workspaces against measurements on an H200 (torch 2.11.0+cu130, cuDNN 9.19) that no fit has seen."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from vramcast.card.libraries import convolution
from vramcast.card.libraries.convolution import (
    _ranked_plans,
    benchmark,
    convolution_backend,
    cudnn_problem,
    cudnn_workspace_bytes,
    smaller_workspaces,
)
from vramcast.card.libraries.cudnn_fit import Recipe, copies_bytes, fitted_workspace
from vramcast.card.libraries.cudnn_installed import _candidates, _kept_apart, _usable, open_cudnn
from vramcast.card.libraries.cudnn_query import CudnnDevice, strides
from vramcast.card.libraries.problem import Card, ConvolutionProblem, as_cudnn
from vramcast.errors import UsageError

EXACT_SHARE = 0.9
H200 = Card((9, 0), 132, 62_914_560, 150_109_880_320)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


def _measured(name: str = "convolutions_h200.csv") -> list[tuple[ConvolutionProblem, int]]:
    rows = []
    with Path(__file__).with_name(name).open() as file:
        for row in csv.DictReader(file):
            x, w, y, padding, stride, dilation = (
                _sizes(row[name]) for name in ("x", "w", "y", "padding", "stride", "dilation")
            )
            problem = ConvolutionProblem(
                row["operation"], x, w, y, padding, stride, dilation, row["dtype"], row["channels_last"] == "1",
                row["tf32"] == "1",
            )  # fmt: skip
            rows.append((problem, int(row["workspace_bytes"])))
    return rows


def _errors() -> list[float]:
    """|predicted - measured| relative to the convolution's tensors, smallest first."""
    return sorted(
        abs(cudnn_workspace_bytes(problem, H200) - measured) / problem.tensor_bytes for problem, measured in _measured()
    )


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "open_cudnn", lambda: None)
    cudnn_workspace_bytes.cache_clear()


def test_fitted_workspaces_match_measured_ones(no_library: None) -> None:
    errors = _errors()
    cudnn_workspace_bytes.cache_clear()
    assert errors[len(errors) // 2] < 0.001
    assert sum(error < 0.05 for error in errors) / len(errors) > 0.80


RECORDED_CUDNN = 919  # the sweep ran with cuDNN 9.19; others choose otherwise


@pytest.mark.skipif(
    getattr(open_cudnn(), "version", 0) // 100 != RECORDED_CUDNN,
    reason="the sweep is of cuDNN 9.19",
)
def test_asking_cudnn_is_exact_for_most() -> None:
    """What is left are plans of cuBLAS for 1x1 convolutions, which no library answers for without a device."""
    cudnn_workspace_bytes.cache_clear()
    exact = [abs(cudnn_workspace_bytes(problem, H200) - measured) <= 512 for problem, measured in _measured()]
    assert sum(exact) / len(exact) > EXACT_SHARE


def test_a_named_folder_without_cudnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VRAMCAST_NO_CUDNN", raising=False)
    monkeypatch.setenv("VRAMCAST_CUDNN", str(tmp_path))
    with pytest.raises(UsageError, match=r"no cuDNN 9\.8 or newer"):
        open_cudnn.__wrapped__()


@pytest.mark.skipif(open_cudnn() is None, reason="no cuDNN from 9.8 on is installed")
def test_a_cudnn_of_its_own_folder_answers_the_same() -> None:
    """Beside the one that is loaded already, in a link namespace of its own."""
    folders = [Path(path).parents[3] for path in _candidates() if Path(path).is_absolute()]
    apart = [library for folder in folders if (library := _usable(_kept_apart(str(folder)))) is not None]
    if not apart:
        pytest.skip("cuDNN and cuBLAS do not lie together in one folder")
    problem = ConvolutionProblem(
        "forward", (8, 64, 56, 56), (64, 64, 3, 3), (8, 64, 56, 56), (1, 1), (1, 1), (1, 1), "float32", False, True
    )
    device = CudnnDevice((8, 6), 28, 3 << 20, 12 << 30)
    own = open_cudnn()
    assert own is not None and apart[0].version == own.version
    assert apart[0].choice(problem, device) == own.choice(problem, device)


@pytest.mark.skipif(open_cudnn() is None, reason="no cuDNN from 9.8 on is installed")
def test_cudnn_answers_for_cards_that_are_not_here() -> None:
    library = open_cudnn()
    assert library is not None
    problem = ConvolutionProblem(
        "forward", (8, 64, 56, 56), (64, 64, 3, 3), (8, 64, 56, 56), (1, 1), (1, 1), (1, 1), "bfloat16", False, True
    )
    copies = copies_bytes(problem, Recipe(2, 2, 2, 0))
    for capability in ((8, 0), (8, 6), (8, 9), (9, 0)):
        choice = library.choice(problem, CudnnDevice(capability, 100, 32 << 20, 24 << 30))
        assert choice is not None
        assert abs(choice.workspace_bytes - copies) < 1024


@pytest.mark.skipif(open_cudnn() is None, reason="no cuDNN from 9.8 on is installed")
def test_plans_after_the_first_need_less_in_the_end() -> None:
    """A layer of VGG-16: in the order of cuDNN's ranking, which has engines before and after those it is asked for."""
    library = open_cudnn()
    assert library is not None
    device = CudnnDevice((9, 0), 132, 62_914_560, 150_109_880_320)
    for operation in ("forward", "backward_data", "backward_weight"):
        shape = (73, 64, 224, 224)
        problem = ConvolutionProblem(
            operation, shape, (64, 64, 3, 3), shape, (1, 1), (1, 1), (1, 1), "float32", False, True
        )
        ranking, choice = library.ranking(problem, device).plans, library.choice(problem, device)
        assert choice is not None
        assert (ranking[0].engine, ranking[0].knobs) == (choice.engine, choice.knobs)
        assert any(plan.refused for plan in ranking)
        first, others = cudnn_workspace_bytes(problem, H200), smaller_workspaces(problem, H200)
        assert len(others) > 10
        assert 0 in others and first > problem.tensor_bytes // 3


def test_without_the_library_a_refused_plan_is_followed_by_one_that_needs_nothing(no_library: None) -> None:
    _ranked_plans.cache_clear()
    problem = ConvolutionProblem(
        "forward", (2, 64, 8, 8), (64, 64, 3, 3), (2, 64, 8, 8), (1, 1), (1, 1), (1, 1), "float32", False, True
    )
    assert smaller_workspaces(problem, H200) == (0,)
    _ranked_plans.cache_clear()
    cudnn_workspace_bytes.cache_clear()


def test_strides_are_those_of_a_dense_tensor() -> None:
    assert strides((2, 3, 4, 5), False) == [60, 20, 5, 1]
    assert strides((2, 3, 4, 5), True) == [60, 1, 15, 3]
    assert strides((2, 3, 4, 5, 6), True) == [360, 1, 90, 18, 3]


def test_contiguous_tensor_core_convolution_copies_its_operands() -> None:
    problem = ConvolutionProblem(
        "forward", (2, 37, 8, 8), (64, 37, 3, 3), (2, 64, 8, 8), (1, 1), (1, 1), (1, 1), "float16", False, True
    )
    x, w, y = 2 * 40 * 64 * 2, 64 * 40 * 9 * 2, 2 * 64 * 64 * 2
    assert copies_bytes(problem, Recipe(2, 2, 2, 0)) == x + w + y
    assert copies_bytes(problem, Recipe(1, 0, 0, 0)) == 2 * 37 * 64 * 2
    assert copies_bytes(problem, Recipe(0, 0, 0, 1)) == 2 * 64 * 37 * 9 * 4


def test_first_layer_padding() -> None:
    problem = ConvolutionProblem(
        "forward", (1, 3, 4, 4), (8, 3, 3, 3), (1, 8, 4, 4), (1, 1), (1, 1), (1, 1), "float16", True, True
    )
    assert copies_bytes(problem, Recipe(3, 0, 0, 0)) == 4 * 16 * 2
    assert copies_bytes(problem, Recipe(2, 0, 0, 0)) == 8 * 16 * 2


def test_one_dimension_is_asked_as_two_and_transposed_as_backward() -> None:
    problem = as_cudnn(
        "forward", (4, 8, 100), (8, 16, 5), (4, 16, 204), stride=(2,), padding=(0,), dilation=(1,), transposed=True,
        dtype="float32", channels_last=False, tf32=True,
    )  # fmt: skip
    assert problem.operation == "backward_data"
    assert problem.x == (4, 16, 1, 204)
    assert problem.y == (4, 8, 1, 100)
    assert problem.w == (8, 16, 1, 5)
    assert (problem.padding, problem.stride, problem.dilation) == ((0, 0), (1, 2), (1, 1))
    assert problem.groups == 1


@pytest.mark.parametrize(
    ("x", "w", "groups", "dtype", "channels_last", "expected"),
    [
        ((2, 64, 8, 8), (64, 64, 3, 3), 1, "float32", False, "cudnn"),
        ((2, 64, 8, 8), (64, 1, 3, 3), 64, "float32", False, "depthwise2d"),
        ((2, 64, 8, 8), (64, 1, 3, 3), 64, "bfloat16", False, "depthwise2d"),
        ((2, 64, 8, 8), (64, 1, 3, 3), 64, "float16", False, "cudnn"),
        ((2, 16, 8, 8), (16, 1, 3, 3), 16, "float16", False, "depthwise2d"),
        ((2, 64, 8, 8), (64, 1, 7, 7), 64, "float16", False, "depthwise2d"),
        ((2, 64, 8, 8), (64, 1, 3, 3), 64, "float32", True, "cudnn"),
        ((2, 64, 4, 8, 8), (64, 1, 3, 3, 3), 64, "float32", False, "depthwise3d"),
        ((2, 64, 8, 8), (64, 32, 3, 3), 2, "float32", False, "cudnn"),
    ],
)
def test_backend(
    x: tuple[int, ...], w: tuple[int, ...], groups: int, dtype: str, channels_last: bool, expected: str
) -> None:
    dims = len(x) - 2
    assert convolution_backend(x, w, (1,) * dims, (1,) * dims, groups, False, dtype, channels_last) == expected


def test_cudnn_is_not_asked_for_depthwise_kernels_and_empty_tensors() -> None:
    options = {"channels_last": False, "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "transposed": False}
    for batch, groups, per_group in ((2, 64, 1), (0, 1, 64)):
        shape = (batch, 64, 8, 8)
        assert cudnn_problem(
            "forward", shape, (64, per_group, 3, 3), shape, dtype="float32", groups=groups, **options
        ) is None  # fmt: skip


def test_every_direction_layout_and_type_has_an_answer_on_every_card() -> None:
    for capability in ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)):
        for dtype in ("float32", "float16", "bfloat16", "float64"):
            for operation in ("forward", "backward_data", "backward_weight"):
                for channels_last in (False, True):
                    problem = ConvolutionProblem(
                        operation, (4, 64, 32, 32), (64, 64, 3, 3), (4, 64, 32, 32), (1, 1), (1, 1), (1, 1), dtype,
                        channels_last, True,
                    )  # fmt: skip
                    found = fitted_workspace(problem, capability, 60)
                    assert 0 <= found.copies_bytes + found.partials_bytes < 10 * problem.tensor_bytes + (64 << 20)


@pytest.mark.slow
@pytest.mark.skipif(
    getattr(open_cudnn(), "version", 0) // 100 != RECORDED_CUDNN, reason="measured with another version of cuDNN"
)
def test_the_largest_workspace_that_benchmarking_tries() -> None:
    """While cudnn.benchmark tries the plans of ResNet-50 and MobileNetV2."""
    equal, errors = 0, []
    for problem, measured in _measured("benchmarked_h200.csv"):
        predicted = benchmark(problem, H200).tried_bytes[0]
        equal += abs(predicted - measured) < 1024
        errors.append(abs(predicted - measured) / measured)
    assert len(errors) > 190 and equal > 0.95 * len(errors)
    assert max(errors) < 0.25


@pytest.mark.slow
@pytest.mark.skipif(
    getattr(open_cudnn(), "version", 0) // 100 != RECORDED_CUDNN, reason="measured with another version of cuDNN"
)
def test_the_plan_that_is_taken_to_be_fastest() -> None:
    """The workspace of the plan that an H200 ran fastest, of convolutions of the zoo's scripts."""
    kept = [(benchmark(problem, H200).by_speed_bytes[0], size) for problem, size in _measured("fastest_h200.csv")]
    assert len(kept) == 203
    assert sum(abs(predicted - measured) <= 2 << 20 for predicted, measured in kept) >= 188


@pytest.mark.slow
@pytest.mark.skipif(
    getattr(open_cudnn(), "version", 0) // 100 != RECORDED_CUDNN, reason="measured with another version of cuDNN"
)
def test_the_plans_of_an_h200() -> None:
    """Every plan that cuDNN listed on the card for convolutions of the zoo's scripts, random layers and a grid of
    sizes: strided, dilated, grouped, transposed, of one to three dimensions."""
    count, largest, first_ten, device_only = 0, 0, 0, 0
    with Path(__file__).with_name("plans_h200.csv").open() as file:
        rows = list(csv.DictReader(file))
    for (problem, measured), row in zip(_measured("plans_h200.csv"), rows, strict=True):
        predicted = [plan.workspace_bytes for plan in _ranked_plans(problem, H200)]
        count += 1
        largest += abs(max(predicted) - measured) <= max(2 << 20, measured // 100)
        listed = list(map(int, row["first_ten"].split()))
        first_ten += len(predicted) >= len(listed) and all(
            abs(ours - theirs) < 1024 for ours, theirs in zip(predicted, listed, strict=False)
        )
        found = {int(plan.partition(":")[2]) for plan in row["device_only"].split()}
        device_only += all(any(abs(ours - size) <= size // 1000 + 1024 for ours in predicted) for size in found)
    assert count == 500
    assert largest >= 0.97 * count
    assert first_ten >= 0.85 * count
    assert device_only >= 0.99 * count
