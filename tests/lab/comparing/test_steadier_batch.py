"""What is advised where the largest batch is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lab.comparing.steadier_batch import advised
from vramcast.gpus import find_gpu

LIMIT = 1_000_000
GPU = find_gpu("h200")


class Known:
    """Sizes of which it is known how much memory each needs, as it is and with smaller workspaces."""

    def __init__(self, op: str, needs: dict[int, tuple[int, ...]], less_workspace: bool = False) -> None:
        self._op, self._needs, self._less_workspace = op, needs, less_workspace

    def trace(self, number: int, gpu: Any) -> Any:
        return SimpleNamespace(ops=(self._op,))

    def needs(self, number: int, gpu: Any, limit_bytes: int) -> tuple[bool, int]:
        """Amounts that it runs with: from the first up to the second, from the third up to the fourth ..."""
        ends = self._needs.get(number, (LIMIT + 1, LIMIT + 1))
        pairs = zip(ends[::2], ends[1::2], strict=True)
        return any(low <= limit_bytes <= high for low, high in pairs), 0

    def needs_less_workspace(self, number: int, gpu: Any, limit_bytes: int) -> bool:
        return self._less_workspace

    def largest(self, gpu: Any, most: int, limit_bytes: int, near: int) -> Any:
        return SimpleNamespace(number=max(n for n in self._needs if n <= most and self.needs(n, gpu, limit_bytes)[0]))


def advise(known: Known, number: int) -> int:
    return advised(known, SimpleNamespace(number=number), GPU, LIMIT)  # type: ignore[arg-type]


def _line(count: int) -> dict[int, tuple[int, ...]]:
    """The last takes all the memory there is."""
    return {number: (LIMIT * number // count, LIMIT) for number in range(1, count + 1)}


@pytest.mark.parametrize(("largest", "expected"), [(1, 1), (3, 3), (49, 49), (50, 49), (200, 198), (1000, 990)])
@pytest.mark.parametrize("op", ["aten::mm", "aten::convolution"])
def test_a_hundredth_is_left_free_where_it_costs_little(op: str, largest: int, expected: int) -> None:
    found = advise(Known(op, _line(largest)), largest)
    assert found == pytest.approx(expected, abs=largest // 250)
    assert found <= expected


def test_of_batches_that_fit_with_smaller_workspaces_one_is_taken_that_runs_with_less_too() -> None:
    lucky, steady = (999_000, LIMIT), (900_000, LIMIT)
    known = Known(
        "aten::convolution", {84: lucky, 83: (996_500, 997_500, 999_000, LIMIT), 82: steady, 81: steady}, True
    )
    assert advise(known, 84) == 82


def test_small_batches_are_taken_as_they_are() -> None:
    assert advise(Known("aten::convolution", {7: (LIMIT, LIMIT), 6: (1, LIMIT)}, True), 7) == 7


def test_where_none_is_steady_the_one_that_runs_with_most_amounts_is_taken() -> None:
    known = Known("aten::convolution", {90: (LIMIT, LIMIT), 89: (996_000, LIMIT), 88: (999_000, LIMIT)}, True)
    assert advise(known, 90) == 89


def test_nothing_is_advised_where_nothing_fits() -> None:
    assert advise(Known("aten::mm", {}), 0) == 0
