"""Steps judged for a host that nothing slows down, with made-up records."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from corpus.time_errors import UNDISTURBED, TimeComparison, summary
from corpus.times import MeasuredTimes, TimeFigures, Undisturbed, combined, measured_times, time_figures

from corpus import time_page


def _step(ms: float) -> dict[str, Any]:
    return {"device_seconds": ms / 1e3, "phase_seconds": {"forward": 0.4 * ms / 1e3, "backward": 0.6 * ms / 1e3}}


def _record(step_ms: list[float], calm_ms: float = 0.0, name: str = "a") -> dict[str, Any]:
    """With `calm_ms`: steps of a host that was 1.1 to 1.7 times as slow as it can be, and felt it."""
    record = {
        "name": name, "factory": "m:f", "args": {}, "tags": ["vision"], "steps": [{}, *map(_step, step_ms)],
        "warmup_steps": 1, "free_running_step_seconds": None,
    }  # fmt: skip
    if calm_ms:
        steps = [{**_step(calm_ms * slow**0.5), "loops": [slow * 1e-4] * 4} for slow in (1.1, 1.3, 1.5, 1.7)]
        record["watched"] = {"loop_seconds": 1e-4, "autograd_threads": 1, "steps": steps}
    return record


def _measured(folder: Path, *records: dict[str, Any]) -> MeasuredTimes:
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "h200-x.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (runs,) = measured_times((folder,)).values()
    return combined(runs)


def _predicted(ms: float, calm_ms: float = 0.0) -> TimeFigures:
    calm = Undisturbed(calm_ms / 1e3, {"forward": calm_ms / 2e3, "backward": calm_ms / 2e3}) if calm_ms else None
    return TimeFigures(ms / 1e3, {"forward": ms / 2e3, "backward": ms / 2e3}, "host", 0.05, 0.1, 0.08, calm)


def test_runs_whose_host_was_watched_do_not_mix_with_others(tmp_path: Path) -> None:
    both = _measured(tmp_path, _record([100]), _record([140], 80), _record([120], 90))
    assert both.seconds == pytest.approx(0.12)
    assert both.undisturbed is not None and both.undisturbed.seconds == pytest.approx(0.085)
    assert both.undisturbed.phases == pytest.approx({"forward": 0.034, "backward": 0.051, "optimizer": 0.0})
    assert _measured(tmp_path, _record([100, 90, 130])).undisturbed is None


def test_a_busy_computer_explains_a_slow_step(tmp_path: Path) -> None:
    comparison = TimeComparison(_measured(tmp_path, _record([140], 100)), _predicted(110, 100))
    calm = comparison.undisturbed
    assert comparison.error == pytest.approx(110 / 140 - 1)
    assert calm is not None and calm.error == pytest.approx(0.0)
    assert calm.phase_error("forward") == pytest.approx(50 / 40 - 1)


def test_without_a_watch_or_a_prediction_for_it_only_the_plain_figures_are_shown(tmp_path: Path) -> None:
    watched, plain = _measured(tmp_path, _record([140], 100)), _measured(tmp_path, _record([140, 125, 150]))
    for comparison in (TimeComparison(watched, _predicted(110)), TimeComparison(plain, _predicted(110, 100))):
        assert comparison.undisturbed is None
        names = [row[0] for row in summary([comparison])]
        assert names == ["step", "forward", "backward", "optimizer", "step, specification only"]


def test_the_page_shows_both_beside_each_other(tmp_path: Path) -> None:
    measured = _measured(tmp_path, _record([140], 100))
    page = "\n".join(time_page.section([TimeComparison(measured, _predicted(100, 95))]))
    assert "*Undisturbed host*: the H200's computer is shared" in page
    assert "| step | 1 | 28.6% | 28.6% | 0% |" in page
    assert f"| step, {UNDISTURBED} | 1 | 5.0% | 5.0% | 100% |" in page
    assert f"| backward, {UNDISTURBED} | 1 |" in page


def test_predictions_for_an_undisturbed_host_are_written_and_read_back() -> None:
    torch = pytest.importorskip("torch")
    import vramcast

    with vramcast.virtual_gpu("h200") as gpu:
        gpu.log_ops(after_steps=None)
        x = torch.ones(64, 64, device="cuda")
        with gpu.iteration():
            for _ in range(50):
                x = x + 1.0
    figures = time_figures(gpu.prediction().trace)
    assert figures is not None and figures.undisturbed is not None
    assert figures.undisturbed.seconds < figures.seconds, "nothing but the host limits it"
    assert TimeFigures.from_json(json.loads(json.dumps(asdict(figures)))) == figures
