"""Predicted operator times against those recorded on the H200."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from vramcast.gpus import find_gpu
from vramcast.timing.costs import CostModel

RECORDS = Path(__file__).parents[2] / "lab" / "data" / "records" / "op_times" / "h200-torch2.11.0.zip"
pytestmark = pytest.mark.skipif(not RECORDS.is_file(), reason="the records are not part of an installed package")


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[dict[str, Any]]]:
    """Every third workload."""
    with zipfile.ZipFile(RECORDS) as archive:
        texts = [gzip.decompress(archive.read(name)) for name in sorted(archive.namelist())[::3]]
    return {data["name"]: data["rows"] for data in map(json.loads, texts)}


def _errors(model: CostModel, recorded: dict[str, list[dict[str, Any]]]) -> list[float]:
    errors = []
    for rows in recorded.values():
        kernels = [row for row in rows if not row["args"].startswith("cpu:")]
        predicted = sum(row["count"] * model.cost(row["op"], row["args"]).device_seconds for row in kernels)
        errors.append(abs(predicted / sum(row["total_ns"] * 1e-9 for row in kernels) - 1))
    return sorted(errors)


def test_the_sum_of_a_steps_operators(recorded: dict[str, list[dict[str, Any]]]) -> None:
    """Fitted on these workloads among others: it guards against a change that breaks the model. What to expect of
    workloads it has not seen is in docs/lab/operator-times.md."""
    errors = _errors(CostModel.for_gpu(find_gpu("h200")), recorded)
    assert median(errors) < 0.04
    assert errors[int(0.9 * len(errors))] < 0.12


def test_specification_alone(recorded: dict[str, list[dict[str, Any]]]) -> None:
    errors = _errors(CostModel(find_gpu("h200")), recorded)
    assert median(errors) < 0.25


@pytest.mark.parametrize("calibrated", [True, False])
def test_no_operator_is_faster_than_the_card(calibrated: bool, recorded: dict[str, list[dict[str, Any]]]) -> None:
    spec = find_gpu("h200")
    model = CostModel.for_gpu(spec) if calibrated else CostModel(spec)
    for rows in recorded.values():
        for row in rows:
            found = model.cost(row["op"], row["args"])
            if row["args"].startswith("cpu:"):
                continue
            fastest = max(model.card.rate(unit) for unit in ("bf16", "tf32", "f32"))
            assert found.device_seconds >= found.flops / fastest
            assert found.device_seconds * model.card.bandwidth >= found.bytes - model.card.l2_bytes * max(
                found.kernels, 1
            )


def test_no_operator_of_the_corpus_is_unknown(recorded: dict[str, list[dict[str, Any]]]) -> None:
    model = CostModel.for_gpu(find_gpu("h200"))
    for rows in recorded.values():
        for row in rows:
            found = model.cost(row["op"], row["args"])
            assert (found.device_seconds > 0) or row["total_ns"] == 0, row["op"]
    assert not model.unknown_ops
