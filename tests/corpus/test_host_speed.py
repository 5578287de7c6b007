"""Steps judged at the speed that their host had, and against the fastest of them; with made-up records."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from corpus.time_errors import AGAINST_FASTEST, AT_HOST_SPEED, TimeComparison, summary
from corpus.times import HOST_FACTORS, AtHost, MeasuredTimes, TimeFigures, combined, measured_times, time_figures

from corpus import time_page
from vramcast.timing.host import packaged_calls


def _record(step_ms: list[float], factors: tuple[float, ...] = (), name: str = "a") -> dict[str, Any]:
    steps = [
        {"device_seconds": ms / 1e3, "phase_seconds": {"forward": 0.4 * ms / 1e3, "backward": 0.6 * ms / 1e3}}
        for ms in step_ms
    ]
    record = {
        "name": name, "factory": "m:f", "args": {}, "tags": ["vision"], "steps": [{}, *steps], "warmup_steps": 1,
        "free_running_step_seconds": None,
    }  # fmt: skip
    if factors:
        record["host_calls"] = {
            when: {kind: factor * seconds for kind, seconds in packaged_calls().items() if kind != "empty"}
            for when, factor in zip(("before", "after"), factors, strict=False)
        }
    return record


def _measured(folder: Path, *records: dict[str, Any]) -> MeasuredTimes:
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "h200-x.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (runs,) = measured_times((folder,)).values()
    return combined(runs)


def _predicted(*points: tuple[float, float]) -> TimeFigures:
    """(factor, milliseconds), of which the forward pass is half."""
    found = tuple(AtHost(factor, ms / 1e3, {"forward": ms / 2e3, "backward": ms / 2e3}) for factor, ms in points)
    plain = next((point for point in found if point.factor == 1.0), AtHost(1.0, 0.1, {"forward": 0.05}))
    return TimeFigures(plain.seconds, plain.phases, "host", 0.05, 0.1, 0.08, found)


def test_a_record_says_how_fast_its_host_was(tmp_path: Path) -> None:
    assert _measured(tmp_path, _record([100, 90, 130], (1.2, 1.2))).host_factor == pytest.approx(1.2)
    assert _measured(tmp_path, _record([100], (1.0, 1.44))).host_factor == pytest.approx(1.2)
    assert _measured(tmp_path, _record([100], (1.3,))).host_factor == pytest.approx(1.3), "a full card has no second"
    old = _measured(tmp_path, _record([100, 90, 130]))
    assert old.host_factor is None and old.probed is None
    assert old.seconds == pytest.approx(0.1) and old.fastest_seconds == pytest.approx(0.09)


def test_runs_without_probes_do_not_mix_with_those_that_have_them(tmp_path: Path) -> None:
    both = _measured(tmp_path, _record([100]), _record([140], (1.4, 1.4)), _record([120], (1.2, 1.2)))
    assert both.seconds == pytest.approx(0.12) and both.host_factor is None
    assert both.fastest_seconds == pytest.approx(0.1)
    assert both.probed is not None and both.probed.seconds == pytest.approx(0.13)
    assert both.probed.host_factor == pytest.approx(1.3)


@pytest.mark.parametrize(
    ("factor", "milliseconds"), [(0.7, 80), (0.85, 90), (1.0, 100), (1.1, 110), (1.2, 120), (1.3, 130), (0.55, 70)]
)
def test_a_host_between_two_predicted_ones_is_between_them(factor: float, milliseconds: float) -> None:
    figures = _predicted((0.7, 80), (1.0, 100), (1.2, 120)).at_host(factor)
    assert figures is not None
    assert figures.seconds == pytest.approx(milliseconds / 1e3)
    assert figures.phases == pytest.approx({"forward": milliseconds / 2e3, "backward": milliseconds / 2e3})


def test_a_slow_host_explains_a_slow_step(tmp_path: Path) -> None:
    comparison = TimeComparison(_measured(tmp_path, _record([140], (1.4, 1.4))), _predicted((1.0, 100), (1.4, 140)))
    there = comparison.at_host_speed
    assert comparison.error == pytest.approx(100 / 140 - 1)
    assert there is not None and there.error == pytest.approx(0.0)
    assert there.phase_error("forward") == pytest.approx(70 / 56 - 1)


def test_without_probes_or_predictions_for_them_only_the_plain_figures_are_shown(tmp_path: Path) -> None:
    new, old = _measured(tmp_path, _record([140], (1.4, 1.4))), _measured(tmp_path, _record([140, 125, 150]))
    for comparison in (TimeComparison(new, _predicted()), TimeComparison(old, _predicted((1.0, 100), (1.4, 140)))):
        assert comparison.at_host_speed is None
        assert [row[0] for row in summary([comparison])] == [
            "step", "forward", "backward", "optimizer", "step, specification only", AGAINST_FASTEST,
        ]  # fmt: skip
        page = "\n".join(time_page.section([comparison]))
        assert AT_HOST_SPEED not in page.lower() and AGAINST_FASTEST in page
    rows = {row[0]: row for row in summary([TimeComparison(old, _predicted((1.0, 100), (1.4, 140)))])}
    assert rows["step"][2] == pytest.approx(1 - 100 / 140)
    assert rows[AGAINST_FASTEST][1:4] == (1, pytest.approx(0.2), pytest.approx(0.2))


def test_the_page_shows_both_beside_each_other(tmp_path: Path) -> None:
    measured = _measured(tmp_path, _record([140], (1.4, 1.4)))
    page = "\n".join(time_page.section([TimeComparison(measured, _predicted((1.0, 100), (1.4, 133)))]))
    assert "*At the host's measured speed*: single calls were timed" in page
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
    assert seconds == sorted(seconds) and seconds[-1] > 1.5 * seconds[0], "nothing but the host limits it"
    at_one = figures.at_host(1.0)
    assert at_one is not None and at_one.seconds == pytest.approx(figures.seconds)
    assert TimeFigures.from_json(json.loads(json.dumps(asdict(figures)))) == figures
