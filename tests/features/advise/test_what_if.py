"""What-ifs of a small job: every line traced, the fastest that fits first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vramcast
from tests.jobs import tiny
from vramcast.card.compiled.compiler import why_not
from vramcast.cli.main import main
from vramcast.features.what_if.result import WhatIfs
from vramcast.report.outcomes import what_if_document, what_if_page
from vramcast.report.page import page_html

JOB = {
    **tiny.JOB,
    "name": "small",
    "sizes": {"batch": 16},
    "dataset": {"size": 4096, "epochs": 2, "seconds_per_sample": 0.01},
}


@pytest.fixture(scope="module")
def found() -> WhatIfs:
    return vramcast.what_if(JOB, gpu="h200", keep=["optimizer"], steps=2)


def test_the_fastest_that_fits_comes_first(found: WhatIfs) -> None:
    assert found.asked.time is not None and found.asked.prediction.fits
    rates = [one.samples_per_second for one in found.outcomes if one.prediction.fits]
    assert rates == sorted(rates, reverse=True)
    assert {"batch 32", "batch 64", "2 loading workers"} <= {one.text for one in found.outcomes}
    assert not any("Adam" in one.text for one in found.outcomes)


def test_loading_limits_this_job_and_workers_help(found: WhatIfs) -> None:
    asked = found.asked
    assert asked.time is not None and asked.throughput is not None
    assert asked.time.limited_by == "data" and asked.time.phases["data"] == pytest.approx(0.16, rel=0.05)
    workers = next(one for one in found.outcomes if one.text == "2 loading workers")
    assert workers.time is not None and workers.time.seconds < 0.6 * asked.time.seconds
    assert asked.throughput.epoch_seconds == pytest.approx(256 * asked.time.seconds)


def test_what_a_line_says_is_what_predict_says(found: WhatIfs) -> None:
    larger = next(one for one in found.outcomes if one.text == "batch 32")
    again = vramcast.predict({**JOB, "sizes": {"batch": 32}}, gpu="h200", steps=2)
    assert larger.prediction.device_bytes == again.device_bytes
    assert larger.time is not None and larger.time.seconds == pytest.approx(again.step_seconds)


def test_it_can_be_read_and_parsed(found: WhatIfs) -> None:
    document = json.loads(json.dumps(what_if_document(found)))
    assert document["outcomes"][0]["time"]["throughput"]["samples_per_second"] > 0
    assert "samples/s" in page_html(what_if_page(found))


def test_a_knob_that_does_not_exist_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vramcast.yaml"
    path.write_text(json.dumps(JOB))
    assert main(["whatif", str(path), "--allow-code", "--keep", "colour"]) == 2
    assert "colour" in capsys.readouterr().err


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_both_ways_with_and_without_compiling() -> None:
    found = vramcast.what_if(
        {**tiny.JOB, "sizes": {"batch": 32768}}, gpu="h200", also=["compile"], steps=2,
        keep=["optimizer", "batch", "checkpointing", "precision"],
    )  # fmt: skip
    (compiled,) = found.outcomes
    assert compiled.text == "torch.compile"
    assert compiled.prediction.peak_allocated_bytes < 0.95 * found.asked.prediction.peak_allocated_bytes
    assert compiled.time is not None and found.asked.time is not None


def test_a_job_that_does_not_fit_gets_the_fastest_that_does() -> None:
    job = {**tiny.JOB, "name": "large", "sizes": {"batch": 65_536}}
    asked = vramcast.predict(job, gpu="h200", steps=2).prediction
    memory = asked.peak_reserved_bytes - (asked.peak_reserved_bytes // 8)
    found = vramcast.what_if(job, gpu="h200", memory=f"{memory}B", keep=["optimizer"], steps=2)
    assert not found.asked.prediction.fits
    fitting = [one for one in found.outcomes if one.prediction.fits]
    assert (found.best is not None) == bool(fitting)
    assert fitting, [(one.text, one.prediction.peak_reserved_bytes, memory) for one in found.outcomes]
