"""The log of the fourth seed document: step time, bottleneck and what was not recorded, as the document found them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import vramcast
from vramcast.cli.main import main
from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.diagnose import diagnose_run, read_logs
from vramcast.features.diagnose.logs.result import PREDICTED, PredictedChange, PredictedStep, Setup
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
    asked = PredictedChange(
        change="as it is", seconds=5.8, samples=3, device_bytes=43 << 30, fits=True, steps_per_epoch=800
    )
    faster = replace(asked, change="8-bit Adam + batch 3", seconds=8.7, samples=9, device_bytes=60 << 30,
                     steps_per_epoch=267)  # fmt: skip
    slower = replace(asked, change="checkpoint every block", seconds=6.38, device_bytes=29 << 30)
    large = replace(asked, change="batch 9", seconds=8.7, samples=27, device_bytes=100 << 30, fits=False)
    found = diagnose_run(
        read_logs(S4), Setup(batch=1, gpus=3), predicted=predicted, asked=asked, changes=[slower, faster, large]
    )
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
    # Scaled to the measured step: all but 0.1 ms of it is 8.7 / 5.8 times as long, for 3 times as much.
    assert table.rows[0] == ("as it is", "–", "6.00 s", "0.5", "1.3 h", "14.8 h", "measured")
    assert table.rows[1] == ("8-bit Adam + batch 3", "60.00", "9.00 s", "1", "40.1 min", "7.4 h", "predicted")
    assert len(table.rows) == 2
    useless = {one.change: one.why for one in found.will_not_help}
    assert useless["checkpoint every block"] == "-9% samples/s, a step of 6.60 s, 29.0 GiB"
    assert useless["batch 9"].startswith("does not fit: ")
    assert any("1.03 times as long" in note for note in found.notes)
    assert not any(isinstance(part, Line) and part.text.startswith("not in the log") for part in page)


def data_log(tmp_path: Path, data_seconds: float) -> Path:
    log = tmp_path / "train.log"
    log.write_text(f"step 10/100 | step_time=1.0s | data_time={data_seconds}s | samples/s 8\n")
    return log


@pytest.mark.parametrize(
    ("workers", "loading", "more_workers", "more_loading", "computing", "expected"),
    [
        # The loop loads itself: what it waits for is the loading, and any worker takes that away while it is shorter.
        (0, 0.6, 2, 0.3, 1.0, 0.4),
        (0, 0.6, 1, 0.6, 1.0, 0.6),
        # Workers that are too slow set the pace: twice as many, half as long.
        (2, 1.0, 4, 0.5, 1.0, 0.5),
        # And then nothing but loading helps.
        (2, 1.0, 2, 1.0, 0.5, 1.0),
        # The job does not say how long loading takes: the wait stays.
        (0, None, 0, None, 0.5, 0.8),
    ],
)
def test_more_workers_are_answered_with_a_figure(
    tmp_path: Path, workers: int, loading: float | None, more_workers: int, more_loading: float | None,
    computing: float, expected: float,
) -> None:  # fmt: skip
    """A step of 1 s that waits 0.6 s for data."""
    asked = PredictedChange(
        change="as it is", seconds=1.0, samples=8, device_bytes=1, fits=True, loading_seconds=loading, workers=workers
    )
    change = replace(asked, change="changed", seconds=computing, loading_seconds=more_loading, workers=more_workers)
    found = diagnose_run(read_logs([data_log(tmp_path, 0.6)]), Setup(batch=8, gpus=1), asked=asked, changes=[change])
    (row,) = [*found.what_ifs, *(one for one in found.will_not_help if one.change == "changed")]
    assert row.step_seconds == pytest.approx(expected)
