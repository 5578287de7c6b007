"""Which plan wins cudnn.benchmark: against the times that an H200 took (lab/data/records/plan_times)."""

from __future__ import annotations

import pytest

from lab.comparing.fastest_plans import RECORDS, judged, ranked_first, read, taken
from vramcast.card.libraries.convolution import likely_fastest_first, recorded_plan
from vramcast.card.libraries.problem import ConvolutionProblem

MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "count", "least", "off_bytes"), [("first", 1572, 0.885, 6.7), ("unseen", 346, 0.865, 6.0)]
)
def test_the_plan_that_is_taken_wins_more_often_than_the_one_that_cudnn_ranks_first(
    name: str, count: int, least: float, off_bytes: float
) -> None:
    """The rules were found in the first set; no shape of the second is in it."""
    records = read(RECORDS / f"{name}.jsonl.gz")
    assert len(records) == count
    near, off = judged(records, taken)
    ranked_near, ranked_off = judged(records, ranked_first)
    assert near >= least and near - ranked_near >= 0.015
    assert off <= off_bytes * MIB and off < ranked_off


def _engines(problem: ConvolutionProblem, *plans: tuple[int, int, bool]) -> list[int]:
    return [plan.engine for plan in likely_fastest_first(problem, [recorded_plan(problem, *plan) for plan in plans])]


def _problem(
    operation: str, x: tuple[int, ...], w: tuple[int, ...], stride: int, tf32: bool = True
) -> ConvolutionProblem:
    y = (x[0], w[0], x[2] // stride, x[3] // stride)
    pad = (w[2] - 1) // 2
    return ConvolutionProblem(operation, x, w, y, (pad,) * 2, (stride,) * 2, (1, 1), "float32", False, tf32)


def test_copies_for_tensor_cores_do_not_pay_for_short_sums() -> None:
    """Sums of 64 products wait for memory, those of 576 for the products."""
    plans = (70, 0, False), (38, 67_141_648, True)
    listed = [(size, engine, cores) for engine, size, cores in plans]
    assert _engines(_problem("forward", (256, 64, 32, 32), (128, 64, 1, 1), 2), *listed) == [70, 38]
    assert _engines(_problem("forward", (256, 64, 32, 32), (128, 64, 3, 3), 2), *listed) == [38, 70]


def test_transforms_come_last_only_beside_tensor_cores() -> None:
    listed = (126 * MIB, 17, False), (53 * MIB, 67, True)
    problem = (256, 512, 8, 8), (256, 512, 3, 3), 1
    assert _engines(_problem("backward_weight", *problem), *listed) == [67, 17]
    assert _engines(_problem("backward_weight", *problem, tf32=False), *listed) == [17, 67]


def test_the_gradient_of_a_strided_input_is_left_to_engines_that_skip_zeros() -> None:
    listed = (31_457_296, 58, True), (20_971_536, 65, True), (0, 25, False)
    assert _engines(_problem("backward_data", (128, 256, 8, 8), (512, 256, 4, 4), 2), *listed) == [65, 58, 25]
    assert _engines(_problem("backward_data", (128, 256, 8, 8), (512, 256, 3, 3), 1), *listed) == [58, 65, 25]
