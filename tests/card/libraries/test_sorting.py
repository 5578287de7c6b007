"""Scratch memory of sorting beside what an H200 took (lab/data/records/workspaces, and a training run)."""

from __future__ import annotations

import pytest

from vramcast.card.libraries.sorting import sort_steps


@pytest.mark.parametrize(
    ("length", "slices", "key_bytes", "steps"),
    [
        (5073, 1, 4, [[40584, 70911]]),
        (11175, 1, 4, [[89400, 146175]]),
        (575318, 1, 4, [[4602544, 7023359]]),
        (8192, 1, 2, [[65536, 88575]]),
        (39513, 1, 2, [[316104, 408063]]),
        (8002175, 1, 2, [[64017400, 81481471]]),
        (50257, 16, 4, [[6432896, 6432896, 3216448, 9811967], [6432896, 6432896, 145919]]),
        (209, 2, 4, [[1672]]),
        (0, 4, 4, []),
    ],
)
def test_what_sorting_takes(length: int, slices: int, key_bytes: int, steps: list[list[int]]) -> None:
    assert sort_steps(length, slices, key_bytes) == steps
