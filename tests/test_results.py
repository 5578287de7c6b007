"""Saved results read back, and set side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.samples import transformer
from vramcast.base.units import GIB, MIB
from vramcast.errors import UsageError
from vramcast.features.compare.results import load_result
from vramcast.features.compare.side_by_side import BYTES, SECONDS, Comparison, compare
from vramcast.memory import predict
from vramcast.report.documents import comparison_document, prediction_document


def measurement(scale: float = 1.0) -> dict[str, Any]:
    """A document as `vramcast measure` writes it."""

    def point(allocated: int, reserved: int) -> dict[str, int]:
        allocated, reserved = int(allocated * scale), int(reserved * scale)
        return {
            "peak_allocated_bytes": allocated,
            "peak_reserved_bytes": reserved,
            "peak_requested_bytes": allocated,
            "allocated_bytes": allocated,
            "reserved_bytes": reserved,
        }

    step = {
        **point(2 * GIB, 3 * GIB),
        "phase_peaks": {
            "forward": point(GIB, 2 * GIB),
            "backward": point(2 * GIB, 3 * GIB),
            "optimizer": point(GIB, 3 * GIB),
        },
        "wall_seconds": 0.1,
        "device_seconds": 0.09,
        "phase_seconds": {"forward": 0.03, "backward": 0.05, "optimizer": 0.01},
        "data_seconds": 0.002,
    }
    run = {
        **point(2 * GIB, 3 * GIB),
        "setup": point(512 * MIB, 600 * MIB),
        "steps": [step, step, step],
        "warmup_steps": 1,
        "step_seconds": 0.09,
        "driver": {"context_bytes": 527 * MIB, "setup_bytes": GIB, "end_bytes": int(3.6 * GIB * scale)},
        "environment": {"gpu": "NVIDIA H200"},
        "extra": {"module_peaks": {"Net": 2 * GIB, "Net.head": GIB}},
    }
    return {"format": "vramcast-measurement", "version": 1, "source": "train.py", "run": run}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    trace = transformer()
    paths = {name: tmp_path / f"{name}.json" for name in ("trace", "predicted", "measured")}
    trace.save(paths["trace"])
    paths["predicted"].write_text(json.dumps(prediction_document(predict(trace))))
    paths["measured"].write_text(json.dumps(measurement()))
    return paths


def values(comparison: Comparison, group: str, name: str) -> tuple[float | None, ...]:
    return next(row.values for row in comparison.rows if (row.group, row.name) == (group, name))


def test_a_trace_and_the_prediction_made_from_it_say_the_same(files: dict[str, Path]) -> None:
    comparison = compare([load_result(files["trace"]), load_result(files["predicted"])])
    assert comparison.reference == 0
    for row in comparison.rows:
        if row.group != "forward peak":
            assert row.values[0] == row.values[1], row


def test_a_measurement_is_the_reference(files: dict[str, Path]) -> None:
    results = [load_result(files["trace"]), load_result(files["measured"])]
    comparison = compare(results)
    assert comparison.reference == 1
    assert values(comparison, "peak", "reserved") == (results[0].peak_reserved_bytes, 3 * GIB)
    assert values(comparison, "peak", "on the device")[1] == int(3.6 * GIB)
    assert values(comparison, "phase", "setup, allocated")[1] == 512 * MIB
    assert values(comparison, "step", "3, reserved")[1] == 3 * GIB
    assert values(comparison, "at the peak", "weights")[1] is None
    assert values(comparison, "forward peak", "Net")[1] == 2 * GIB
    assert values(comparison, "time", "backward") == (None, pytest.approx(0.05))
    assert {row.unit for row in comparison.rows} == {BYTES, SECONDS}
    # Only the trace knows the layers, so there is nothing to set beside them.
    assert not any(row.name == "Net.layers" for row in comparison.rows)


def test_results_with_different_numbers_of_steps(files: dict[str, Path], tmp_path: Path) -> None:
    short = tmp_path / "short.json"
    transformer(steps=1).save(short)
    comparison = compare([load_result(files["trace"]), load_result(short)])
    assert values(comparison, "step", "2, allocated")[1] is None


def test_comparison_as_json(files: dict[str, Path]) -> None:
    comparison = compare([load_result(files["predicted"]), load_result(files["measured"])])
    document = json.loads(json.dumps(comparison_document(comparison)))
    assert document["format"] == "vramcast-comparison"
    assert document["reference"] == "measured"
    assert [column["kind"] for column in document["columns"]] == ["predicted", "measured"]
    assert all(len(row["values"]) == 2 for row in document["rows"])


def test_prediction_document_is_complete_and_adds_up() -> None:
    prediction = predict(transformer())
    document = json.loads(json.dumps(prediction_document(prediction)))
    assert document["fits"] is True and document["out_of_memory"] is None
    assert sum(document["account"]["parts"].values()) == document["device_bytes"]
    assert document["device_bytes"] == document["peak_reserved_bytes"] + document["context_bytes"]
    assert document["headroom_bytes"] == document["limit_bytes"] - document["device_bytes"]
    assert document["notes"][0]["where"] == "train.py:31"
    assert document["account"]["modules"]["children"][0]["name"] == "Net"
    timeline = document["account"]["timeline"]
    assert len(timeline["kinds"]) == len(timeline["points"][0]["by_kind_bytes"])


def test_a_refusal_in_the_document() -> None:
    document = json.loads(json.dumps(prediction_document(predict(transformer(), capacity_bytes=GIB))))
    assert document["fits"] is False
    assert document["out_of_memory"]["at"]["phase"] == "backward"
    assert document["out_of_memory"]["tried_bytes"] > 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "neither a trace, a prediction nor a measurement"),
        ("[]", "not a file of vramcast"),
        ("no json", "not a file of vramcast"),
        ('{"format": "vramcast-prediction", "version": 9}', "version 9"),
        ('{"format": "vramcast-measurement", "version": 1}', "damaged"),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        load_result(path)


def test_missing_files_and_single_files(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_result(tmp_path / "nothing.json")
    with pytest.raises(UsageError, match="at least two"):
        compare([load_result(files["trace"])])


def test_a_job_is_compared_by_the_time_that_predict_prints(tmp_path: Path) -> None:
    """The time of a job holds passes, cards and data that its trace alone does not."""
    alone = prediction_document(predict(transformer()))
    alone["time"] = {"step_seconds": 0.1, "phases": {"forward": 0.1}}
    time = {"step_seconds": 0.4, "phases": {"forward": 0.3, "data": 0.1}}
    document = {"format": "vramcast-job-prediction", "version": 1, "time": time, "prediction": alone}
    path = tmp_path / "job.json"
    path.write_text(json.dumps(document))
    assert load_result(path).seconds == {"step": 0.4, "forward": 0.3, "data": 0.1}


def test_reports_do_not_run_the_timing_model() -> None:
    prediction = predict(transformer())
    assert prediction.time is None and prediction_document(prediction)["time"] is None
