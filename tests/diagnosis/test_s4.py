"""The log of the fourth seed document: step time, bottleneck and what was not recorded, as the document found them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import vramcast
from vramcast.cli.main import main
from vramcast.diagnosis import sample as q
from vramcast.diagnosis.diagnose import diagnose_run, read_logs
from vramcast.diagnosis.result import PREDICTED, PredictedStep, Setup, WhatIf
from vramcast.report.diagnosis import diagnosis_page
from vramcast.report.page import Grid, Line

LOGS = Path(__file__).with_name("logs")
S4 = [LOGS / "s4_train.log", LOGS / "s4_timing.log"]


def test_golden(
    capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(LOGS)
    assert main(["diagnose", "s4_train.log", "s4_timing.log", "--batch", "1", "--gpus", "3"]) == 0
    golden("diagnose", capsys.readouterr().out)


def test_as_the_document_found_it() -> None:
    found = vramcast.diagnose(S4, batch=1, gpus=3)
    diagnosis = found.diagnosis
    assert found.step_seconds == pytest.approx(6.0)
    assert diagnosis.bottleneck_kind == "computation"
    assert "backward pass most of all" in found.bottleneck
    assert diagnosis.missing == (q.BACKWARD, q.SYNC, q.OPTIMIZER)
    assert diagnosis.total_seconds == pytest.approx(8880 * 6)
    assert diagnosis.samples_per_second == pytest.approx(0.5)
    (loader,) = [one for one in diagnosis.will_not_help if "workers" in one.change]
    assert "0.1 ms of 6.00 s" in loader.why


def test_the_step_is_the_sum_of_its_parts_and_nothing_is_counted_twice() -> None:
    diagnosis = vramcast.diagnose(S4, batch=1, gpus=3).diagnosis
    assert sum(part.seconds or 0 for part in diagnosis.parts) == pytest.approx(6.0)
    (forward,) = [part for part in diagnosis.parts if part.phase == q.FORWARD]
    assert forward.seconds == pytest.approx(1.80528)
    vrt, spike = forward.children
    assert (vrt.name, spike.name) == ("VRT processing", "Spike module")
    assert vrt.children[0].name == "VRT Stage8"
    assert sum(child.seconds or 0 for child in vrt.children) == pytest.approx(vrt.seconds)
    assert any("counts time twice" in note for note in diagnosis.notes)


def test_without_recomputation_at_most_one_forward_pass_is_saved() -> None:
    diagnosis = vramcast.diagnose(S4, batch=1, gpus=3).diagnosis
    (off,) = [one for one in diagnosis.helps if one.change.startswith("gradient checkpointing off")]
    assert off.step_seconds == pytest.approx(6.0 - 1.80528)
    times = [one.step_seconds for one in diagnosis.helps if one.step_seconds is not None]
    assert times == sorted(times) and all(seconds < 6 for seconds in times)


def test_whose_throughput_it_is_matters() -> None:
    one = vramcast.diagnose(S4, batch=1, gpus=3, throughput="one")
    assert one.step_seconds == pytest.approx(2.0)
    assert one.diagnosis.samples_per_second == pytest.approx(1.5)
    assert vramcast.diagnose(S4).step_seconds is None
    assert "--batch" in vramcast.diagnose(S4).bottleneck


def test_a_prediction_fills_what_is_missing() -> None:
    predicted = PredictedStep(
        seconds=5.8,
        phases={q.FORWARD: 1.7, q.BACKWARD: 2.6, q.RECOMPUTATION: 1.3, q.SYNC: 0.1, q.OPTIMIZER: 0.08},
        limited_by="memory bandwidth",
    )
    faster = WhatIf(
        change="8-bit Adam + batch 3", source=PREDICTED, step_seconds=3.5, samples_per_second=2.6, epoch_seconds=7200,
        total_seconds=36000, device_bytes=29 << 30, fits=True,
    )  # fmt: skip
    found = diagnose_run(read_logs(S4), Setup(batch=1, gpus=3), predicted=predicted, what_ifs=[faster])
    by_phase = {part.phase: part for part in found.parts}
    assert by_phase[q.FORWARD].source == "measured"
    assert {phase for phase, part in by_phase.items() if part.source == PREDICTED} == {
        q.BACKWARD, q.RECOMPUTATION, q.SYNC, q.OPTIMIZER,
    }  # fmt: skip
    assert by_phase[None].name == "other"
    assert sum(part.seconds or 0 for part in found.parts) == pytest.approx(6.0)
    assert any("8-bit Adam saves memory, not time" in one.change for one in found.will_not_help)
    page = diagnosis_page(found)
    (table,) = [part for part in page if isinstance(part, Grid) and part.headings[0] == "would help"]
    assert table.headings == ("would help", "GiB", "step", "samples/s", "epoch", "in all", "source")
    assert table.rows[1] == ("8-bit Adam + batch 3", "29.00", "3.50 s", "2.6", "2.0 h", "10.0 h", "predicted")
    assert not any(isinstance(part, Line) and part.text.startswith("not in the log") for part in page)
