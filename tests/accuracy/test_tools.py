"""The tools that compare predictions with measurements: children, errors, imports, the page, the published rows."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from lab.comparing.errors import percent, relative_error, signed_percent, summarize
from lab.comparing.predictions import Comparison, Measured, Recording
from lab.external.evaluate import MISMATCH, Predicted
from lab.external.rows import Row, draw, stratified, xmem_set
from lab.external.score import score
from lab.measuring.children import run_each
from lab.measuring.import_measurements import environment_of, file_name, load, main, trim
from lab.pages import page
from lab.pages.accuracy import BEGIN, END, with_summary

MIB = 1 << 20


# -- children ------------------------------------------------------------------------------------------------------


def _work(task: str) -> str:
    if task == "raise":
        raise ValueError("no such thing")
    if task == "die":
        os._exit(3)
    if task == "hang":
        time.sleep(60)
    return task.upper()


def test_every_child_ends_in_an_outcome() -> None:
    tasks = ["a", "raise", "die", "hang", "b"]
    outcomes = dict(run_each(_work, tasks, jobs=3, timeout_seconds=3))
    assert set(outcomes) == set(tasks)
    assert (outcomes["a"].value, outcomes["a"].error, outcomes["b"].value) == ("A", "", "B")
    assert outcomes["a"].peak_rss_bytes > MIB
    assert "ValueError: no such thing" in outcomes["raise"].error
    assert outcomes["die"].error == "the process died"
    assert "stopped after" in outcomes["hang"].error


# -- errors --------------------------------------------------------------------------------------------------------


def test_summary_of_errors() -> None:
    summary = summarize([-0.04, 0.01, 0.02, -0.01, 0.0])
    assert (summary.count, summary.median, summary.p95, summary.largest) == (5, 0.01, 0.04, 0.04)
    assert math.isnan(summarize([]).median)
    assert relative_error(99, 100) == pytest.approx(-0.01)


def test_percent_keeps_the_digits_that_tell() -> None:
    assert (percent(0.00123), percent(0.0123), percent(math.nan)) == ("0.12 %", "1.2 %", "–")
    assert (signed_percent(0.02), signed_percent(-0.002), signed_percent(0.0)) == ("+2.0 %", "−0.20 %", "0.00 %")


# -- measurements --------------------------------------------------------------------------------------------------


def _record(name: str, reserved: int = 100 * MIB, **changes: Any) -> dict[str, Any]:
    peaks = {"peak_allocated_bytes": 80 * MIB, "peak_reserved_bytes": reserved, "peak_requested_bytes": 79 * MIB}
    point = peaks | {"allocated_bytes": 1, "reserved_bytes": 2}
    step = peaks | {
        "allocated_after_bytes": 1, "reserved_after_bytes": 2, "phase_peaks": {"forward": point},
        "wall_seconds": 0.1234567891, "device_seconds": 0.1, "phase_seconds": {"forward": 0.1}, "data_seconds": 0.0,
    }  # fmt: skip
    return {
        "name": name, "factory": "m:f", "args": {"batch": 2}, "tags": ["vision", "fp32"], "mode": "memory", **peaks,
        "num_alloc_retries": 0, "num_ooms": 0, "setup": point, "setup_seconds": 1.0, "steps": [step] * 2,
        "warmup_steps": 1, "step_seconds": 0.1, "free_running_step_seconds": None,
        "driver": {"end_bytes": 700 * MIB, "setup_bytes": None}, "seed": 0, "extra": {}, "child_seconds": 3.0,
        "environment": {"gpu": "NVIDIA H200", "torch": "2.11.0+cu130", "packages": {name: "1.0"}}, **changes,
    }  # fmt: skip


def test_trimmed_record_keeps_peaks_and_drops_the_environment() -> None:
    kept = trim(_record("a"))
    assert kept["peak_reserved_bytes"] == 100 * MIB and kept["driver"] == {"end_bytes": 700 * MIB}
    assert kept["steps"][0]["phases"]["forward"]["peak_reserved_bytes"] == 100 * MIB
    assert kept["steps"][0]["wall_seconds"] == 0.123457
    assert "environment" not in kept and "num_alloc_retries" not in kept


def test_import_completes_an_existing_file(tmp_path: Path) -> None:
    def import_(*records: dict[str, Any]) -> int:
        source = tmp_path / "memory.jsonl"
        source.write_text("".join(json.dumps(r) + "\n" for r in records))
        return main([str(source), "--folder", str(tmp_path / "kept")])

    failed = {"name": "c", "factory": "m:f", "args": {}, "tags": [], "error": "OutOfMemoryError", "mode": "memory"}
    assert import_(_record("a"), _record("b"), failed) == 0
    assert import_(_record("b", reserved=50 * MIB)) == 0
    (path,) = (tmp_path / "kept").iterdir()
    environment, workloads = load(path)
    assert path.name == "h200-torch2.11.0.jsonl"
    assert environment["packages"] == {"a": "1.0", "b": "1.0"}
    assert {name: w["peak_reserved_bytes"] for name, w in workloads.items()} == {"a": 100 * MIB, "b": 50 * MIB}
    other_driver = _record("a") | {"environment": {"gpu": "NVIDIA H200", "torch": "2.11.0+cu129"}}
    assert import_(other_driver) == 2


def test_one_file_is_one_environment() -> None:
    other = _record("b") | {"environment": {"gpu": "NVIDIA A100-SXM4-40GB", "torch": "2.11.0"}}
    assert file_name(other["environment"]) == "a100-sxm4-40gb-torch2.11.0.jsonl"
    with pytest.raises(SystemExit, match="another environment"):
        environment_of([_record("a"), other])


# -- the page ------------------------------------------------------------------------------------------------------


def _comparison(name: str, error: float, *tags: str) -> Comparison:
    measured = Measured(name, "m:f", {}, tags, 0, "h200", "", 1000 * MIB, 2000 * MIB, 2700 * MIB)
    factor = 1 + error
    return Comparison(measured, 1000 * MIB, int(2000 * MIB * factor), int(2700 * MIB * factor), 1.5, 0)


def test_page_names_every_workload_and_why_others_are_left_out() -> None:
    recording = Recording(Path("h200-torch2.11.0.jsonl"), {"gpu": "NVIDIA H200", "torch": "2.11.0+cu130"}, ())
    failed = Comparison(_comparison("broken", 0, "vision").measured, 0, 0, 0, 0.1, 0, "ValueError: x")
    comparisons = (_comparison("good", 0.001, "language"), _comparison("poor", -0.2, "vision", "convolution"), failed)
    result = page.Result(recording, comparisons, {"absent": "needs torchaudio"})
    text = "\n".join(page.document([result], None, {"torch": "2.11.0", "python": "3.11"}))
    assert "2 of 3 workloads were predicted" in text
    assert "| good | 2,000 | 2,002 | +0.10 % |" in text
    assert "| poor | 2,000 MiB | −20.0 % | -400 |" in text
    assert "| broken | 2,000 | not predicted |" in text
    assert "- absent: needs torchaudio" in text
    assert "2 of 3 training workloads" in "\n".join(page.short_summary([result], None))
    assert any("not predicted: broken: ValueError: x" in line for line in page.terminal_summary([result], None))


def test_the_summary_is_replaced_not_repeated() -> None:
    text = f"before\n{BEGIN}\n\nafter\n"
    once = with_summary(text, ["old"])
    assert once == f"before\n{BEGIN}\nold\n{END}\n\nafter\n"
    assert with_summary(once, ["new"]) == once.replace("old", "new")
    with pytest.raises(SystemExit):
        with_summary("no marker", [])


# -- published rows ------------------------------------------------------------------------------------------------


def _row(source: str, number: int, measured: float, **fields: str) -> Row:
    return Row(source, number, "a100-40gb", source, measured, fields)


def test_draw_is_stratified_and_the_same_every_time() -> None:
    rows = [_row("mlp", n, float(n), batch="1") for n in range(1, 401)]
    first, second = draw(rows), draw(list(reversed(rows)))
    assert {r.number for r in first} == {r.number for r in second} and len(first) == 120
    assert all(sum(low < r.number <= low + 40 for r in first) == 12 for low in range(0, 400, 40))
    assert {r.number for r in draw(rows, seed=1)} != {r.number for r in first}


def test_no_model_is_drawn_twice() -> None:
    import random

    rows = [_row("timm_models", n, float(n), model=f"m{n % 7}") for n in range(1, 101)]
    drawn = stratified(rows, 20, random.Random(0))
    assert len({r.fields["model"] for r in drawn}) == len(drawn) == 7


def test_one_constant_a_group_and_two_errors() -> None:
    def predicted(number: int, measured: float, reserved: float, error: str = "") -> Predicted:
        return Predicted(_row("mlp", number, measured, batch="1"), reserved, 0.1, False, error=error)

    evaluation = score(
        [
            predicted(1, 3000, 1600),
            predicted(2, 2500, 1100),
            predicted(3, 4400, 2800),
            predicted(4, 1500, 1, f"{MISMATCH}: 1 parameters built, 2 stated"),
            predicted(5, 1500, 1, "RuntimeError"),
        ],
        {},
    )
    assert evaluation.constants_mib == {"mlp": 1400}
    assert (evaluation.mismatched, len(evaluation.unanswered), len(evaluation.scored)) == (1, 1, 3)
    worst = evaluation.worst(1)[0]
    assert worst.difference_mib == -200
    assert worst.total_error == pytest.approx(-200 / 4400) and worst.net_error == pytest.approx(-200 / 3000)


def test_set_of_an_xmem_run() -> None:
    assert xmem_set("plot/data/001-Anova/CNN/002/run/file.json") == "002"
    assert xmem_set("plot/data/005-Scalability/run/file.json") == "colab"
