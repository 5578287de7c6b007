"""Steps judged at the speed that their host had while they ran, with made-up records."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lab.comparing.time_errors import AT_HOST_SPEED, TimeComparison, summary
from lab.comparing.times import HOST_FACTORS, AtHost, MeasuredTimes, TimeFigures, combined, measured_times, time_figures
from lab.pages import time_page


def _step(ms: float) -> dict[str, Any]:
    return {"device_seconds": ms / 1e3, "phase_seconds": {"forward": 0.4 * ms / 1e3, "backward": 0.6 * ms / 1e3}}


def _record(step_ms: list[float], watched_ms: float = 0.0, slowdown: float = 1.0) -> dict[str, Any]:
    record = {
        "name": "a", "factory": "m:f", "args": {}, "tags": ["vision"], "steps": [{}, *map(_step, step_ms)],
        "warmup_steps": 1, "free_running_step_seconds": None, "peak_reserved_bytes": 2**30,
    }  # fmt: skip
    if watched_ms:
        steps = [
            {**_step(watched_ms * odd), "loops": [part * slowdown * 1e-4 for part in (0.5, 2.0, 1.0, 1.0)]}
            for odd in (0.9, 1.0, 1.3)
        ]
        record["watched"] = {"loop_seconds": 1e-4, "autograd_threads": 1, "steps": steps}
    return record


def _measured(folder: Path, *records: dict[str, Any]) -> MeasuredTimes:
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "h200-x.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (runs,) = measured_times((folder,)).values()
    return combined(runs)


def _predicted(ms: float, *points: tuple[float, float]) -> TimeFigures:
    """(factor, milliseconds), of which the forward pass is half."""
    found = tuple(AtHost(factor, ms / 1e3, {"forward": ms / 2e3, "backward": ms / 2e3}) for factor, ms in points)
    return TimeFigures(ms / 1e3, {"forward": ms / 2e3, "backward": ms / 2e3}, "host", 0.05, 0.1, 0.08, found)


def test_a_record_says_how_slow_its_host_was_and_what_the_steps_took_meanwhile(tmp_path: Path) -> None:
    both = _measured(tmp_path, _record([100]), _record([140], 150, 1.5))
    assert both.seconds == pytest.approx(0.12)
    assert both.watched is not None
    assert (both.watched.factor, both.watched.seconds) == pytest.approx((1.5, 0.15))
    assert both.watched.phases == pytest.approx({"forward": 0.06, "backward": 0.09, "optimizer": 0.0})
    assert _measured(tmp_path, _record([100, 90, 130])).watched is None


@pytest.mark.parametrize(
    ("factor", "milliseconds"), [(1.0, 100), (1.1, 110), (1.3, 130), (1.5, 140), (1.7, 150), (1.9, 160), (0.9, 90)]
)
def test_a_host_between_two_predicted_ones_is_between_them(factor: float, milliseconds: float) -> None:
    figures = _predicted(120, (1.0, 100), (1.3, 130), (1.7, 150)).at_host(factor)
    assert figures is not None
    assert figures.seconds == pytest.approx(milliseconds / 1e3)
    assert figures.phases == pytest.approx({"forward": milliseconds / 2e3, "backward": milliseconds / 2e3})


def test_a_busy_computer_explains_a_slow_step(tmp_path: Path) -> None:
    comparison = TimeComparison(_measured(tmp_path, _record([160], 150, 1.5)), _predicted(110, (1.0, 100), (1.3, 130)))
    there = comparison.at_host_speed
    assert comparison.error == pytest.approx(110 / 160 - 1)
    assert there is not None and there.error == pytest.approx(0.0)
    assert there.phase_error("forward") == pytest.approx(75 / 60 - 1)


def test_without_a_watch_or_predictions_for_it_only_the_plain_figures_are_shown(tmp_path: Path) -> None:
    points = ((1.0, 100.0), (1.3, 130.0))
    watched, plain = _measured(tmp_path, _record([140], 150, 1.5)), _measured(tmp_path, _record([140, 125, 150]))
    for comparison in (TimeComparison(watched, _predicted(110)), TimeComparison(plain, _predicted(110, *points))):
        assert comparison.at_host_speed is None
        names = [row[0] for row in summary([comparison])]
        assert names == ["step", "forward", "backward", "optimizer", "step, specification only"]


def test_the_page_shows_both_beside_each_other(tmp_path: Path) -> None:
    measured = _measured(tmp_path, _record([140], 150, 1.5))
    page = "\n".join(time_page.section([TimeComparison(measured, _predicted(100, (1.0, 95), (1.5, 142.5)))]))
    assert "*At the host's measured speed*: the H200's computer is shared" in page
    assert "| step | 1 | 28.6% | 28.6% | 0% |" in page
    assert f"| step, {AT_HOST_SPEED} | 1 | 5.0% | 5.0% | 100% |" in page
    assert f"| backward, {AT_HOST_SPEED} | 1 |" in page


def test_predictions_for_several_hosts_are_written_and_read_back() -> None:
    torch = pytest.importorskip("torch")
    import vramcast

    with vramcast.virtual_gpu("h200") as gpu:
        gpu.log_ops(after_steps=None)
        x = torch.ones(64, 64, device="cuda")
        with gpu.iteration():
            for _ in range(50):
                x = x + 1.0
    figures = time_figures(gpu.prediction().trace)
    assert figures is not None
    assert [point.factor for point in figures.at_host_speed] == list(HOST_FACTORS)
    seconds = [point.seconds for point in figures.at_host_speed]
    assert seconds[0] < figures.seconds < seconds[-1], "nothing but the host limits it"
    assert TimeFigures.from_json(json.loads(json.dumps(asdict(figures)))) == figures
