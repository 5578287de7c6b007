"""Everyday steps on a quiet H200 beside what is predicted for an undisturbed host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.comparing.quiet_times import errors, workloads_of
from lab.comparing.time_errors import quantile
from tests.accuracy.conftest import EVERY_VARIABLE

pytestmark = pytest.mark.accuracy

SET = "quiet-2"
MEDIAN = 0.08 if os.environ.get(EVERY_VARIABLE) else 0.14
"""Of all 46; every sixth of them gives 6 to 14 %, by where one begins."""
WITHIN_20_PERCENT = 0.9
"""What was reached; docs/lab/step-times.md says which are missed and why."""
EACH = 6
"""One in so many is predicted here."""


def test_steps_on_an_undisturbed_host_are_near(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith("2.11"):
        pytest.skip("measured with torch 2.11")
    workloads = workloads_of(SET)
    chosen = workloads if os.environ.get(EVERY_VARIABLE) else workloads[::EACH]
    found = errors(SET, chosen, tmp_path, jobs=2)
    sizes = [abs(error) for error in found.values()]
    assert len(sizes) >= 5
    assert quantile(sizes, 0.5) <= MEDIAN, found
    assert sum(size > 0.2 for size in sizes) <= (1 - WITHIN_20_PERCENT) * len(sizes) + 1, found
