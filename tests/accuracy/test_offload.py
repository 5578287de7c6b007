"""Workloads with offload beside their measurements (docs/accuracy-offload.md): the card within 0.1 %, the computer's
memory within 2.5 %."""

from __future__ import annotations

import pytest

from lab import DATA
from lab.comparing.offload_accuracy import compared, records
from lab.measuring.measure_corpus import load_corpus

pytestmark = pytest.mark.accuracy

WORKLOADS = [w for w in load_corpus(DATA / "offload.yaml") if "none" not in w.tags]
CHOSEN = WORKLOADS[1::6]


@pytest.mark.parametrize("workload", CHOSEN, ids=lambda w: w.name)
def test_prediction_is_within_tolerance(workload: object) -> None:
    torch = pytest.importorskip("torch")
    known = records()
    if workload.missing or workload.name not in known or not torch.__version__.startswith("2.11"):  # type: ignore[attr-defined]
        pytest.skip(f"needs {', '.join(workload.needs)} and torch 2.11")  # type: ignore[attr-defined]
    row = compared(known[workload.name], known)  # type: ignore[attr-defined]
    assert abs(row.reserved_error) <= 0.001 and abs(row.allocated_error) <= 0.001
    assert abs(row.host_error) <= 0.025
