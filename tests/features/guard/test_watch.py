"""The watch during training, on the virtual card: steps, peaks, the warning, and the report of what was alive."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import vramcast
from tests.features.guard import steps as program
from vramcast.base.units import GIB, MIB
from vramcast.errors import GuardWarning
from vramcast.features.guard.watch import Watch
from vramcast.memory import predict

CARD = "rtx-4090"


def test_steps_are_noticed_and_peaks_read() -> None:
    with vramcast.virtual_gpu(CARD) as card, vramcast.guard() as guard:
        step = program.build(batch=256)
        for _ in range(5):
            step()
        guard.step()
    assert guard.watch.steps == 6 and not guard.watch.warned
    found = card.prediction()
    assert guard.watch.peak_allocated_bytes == found.peak_allocated_bytes
    assert guard.watch.peak_reserved_bytes == found.peak_reserved_bytes
    assert guard.watch.peak_device_bytes == found.device_bytes


def test_a_closed_watch_sees_nothing_more() -> None:
    with vramcast.virtual_gpu(CARD):
        guard = vramcast.guard()
        step = program.build(batch=8)
        step()
        guard.close()
        guard.close()
        step()
    assert guard.watch.steps == 1


def test_between_the_first_steps_and_the_next_second_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    clock = [100.0]
    monkeypatch.setattr("vramcast.features.guard.watch.monotonic", lambda: clock[0])
    watch = Watch()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(looks.append(watch.steps)))
    for _ in range(20):
        watch.step()
    clock[0] += 1
    watch.step()
    watch.step()
    assert looks == [1, 2, 3, 21]


@pytest.mark.parametrize("share", [0.6, 0.9])
def test_it_warns_once_above_the_threshold(share: float) -> None:
    with (
        vramcast.virtual_gpu("t4"),
        vramcast.guard(warn_above=share) as guard,
        warnings.catch_warnings(record=True) as w,
    ):
        warnings.simplefilter("always")
        held = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(10)]
        step = program.build(batch=8)
        for _ in range(3):
            step()
    said = [str(one.message) for one in w if issubclass(one.category, GuardWarning)]
    assert len(said) == (1 if share < 0.7 else 0) and guard.watch.warned == bool(said)
    if said:
        assert re.fullmatch(r"vramcast: 7\d% of the memory is in use at step 1: 10\.\d\d GiB of 14\.\d\d GiB", said[0])
    del held


def test_a_limit_of_this_process_is_what_counts() -> None:
    with vramcast.virtual_gpu("t4"), vramcast.guard() as guard:
        torch.cuda.set_per_process_memory_fraction(0.1)
        held = torch.empty(1400 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.warns(GuardWarning, match=r"9\d% of the memory is in use at step 0: 1\.37 GiB of 1\.46 GiB"):
            guard.watch.look()
    del held


# -- out of memory ----------------------------------------------------------------------------------------------


def run_out(tmp_path: Path, prediction: Any = None, **arguments: Any) -> dict[str, Any]:
    """Train until memory is refused, and give the report."""
    watch = Watch(prediction=prediction, report_dir=tmp_path)
    watch.start()
    try:
        step = program.build(**arguments)
        with pytest.raises(torch.OutOfMemoryError) as error:
            for _ in range(4):
                step()
        error.value.__traceback__ = None
    finally:
        watch.stop()
    assert len(watch.reports) == 1
    found: dict[str, Any] = json.loads(watch.reports[0].with_suffix(".json").read_text(encoding="utf-8"))
    found["text"] = watch.reports[0].read_text(encoding="utf-8")
    return found


def alive(report: dict[str, Any], name: str) -> int:
    return int(report["parts"].get(name, {"alive_bytes": 0})["alive_bytes"])


def test_the_report_says_what_was_alive_beside_the_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"batch": 65536}
    with vramcast.guard(program.build, arguments=arguments, gpu=CARD, quiet=True) as guard:
        assert guard.prediction is not None
        trace, peak = guard.prediction.trace, guard.prediction.peak_reserved_bytes
    assert trace is not None
    capacity = peak * 6 // 10
    predicted = predict(trace, capacity_bytes=capacity)
    assert predicted.out_of_memory is not None
    with vramcast.virtual_gpu(CARD, limit_bytes=capacity):
        report = run_out(tmp_path, predicted, **arguments)
    for name, row in report["parts"].items():
        if name != "outside PyTorch's allocator":
            assert row["alive_bytes"] == pytest.approx(row["predicted_bytes"], abs=2 * MIB), name
    parameters = 4 * (2 * 256 * 1024 + 1024 + 256) * 4
    assert alive(report, "weights") == parameters
    assert alive(report, "saved activations") > 0.5 * report["allocated_bytes"]
    outside = alive(report, "outside PyTorch's allocator")
    assert sum(alive(report, name) for name in report["parts"]) == report["reserved_bytes"] + outside
    assert report["allocated_bytes"] <= report["reserved_bytes"] <= capacity
    assert report["matched_bytes"] == report["unowned_bytes"], "everything else was recognised by its size"
    assert report["predicted"]["at"] == "refusal" and not report["predicted"]["fits"]
    assert "predicted: out of memory at step 1, forward" in report["text"]
    assert re.search(r"saved activations +\d\.\d\d GiB +\d\.\d\d GiB", report["text"])
    assert "what was alive is in" in capsys.readouterr().err


def test_gradients_and_optimizer_state_are_known_by_their_address(tmp_path: Path) -> None:
    with vramcast.virtual_gpu(CARD, limit_bytes=48 * MIB):
        report = run_out(tmp_path, batch=16)
    parameters = 4 * (2 * 256 * 1024 + 1024 + 256) * 4
    assert alive(report, "weights") == alive(report, "gradients") == parameters
    assert 0 < alive(report, "optimizer state") <= 2 * parameters + 1024
    assert alive(report, "activations and other") < 20 * MIB, "two cuBLAS workspaces"
    assert report["predicted"] is None and "there was no prediction" in report["text"]
    assert {"ModuleList.0.0", "ModuleList.3.2"} <= set(report["modules"])
    weight = next(one for one in report["largest"] if one["kind"] == "weights")
    assert (
        weight["known_by"] == "owner" and weight["name"].endswith(".weight") and weight["shape"].startswith("float32[")
    )


def test_variables_of_the_program_are_named(tmp_path: Path) -> None:
    def fill() -> None:
        my_activations = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
        batch = {"pixels": torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")}
        torch.empty(GIB, dtype=torch.uint8, device="cuda")
        del my_activations, batch

    with vramcast.virtual_gpu(CARD, limit_bytes=512 * MIB), vramcast.guard(report_dir=tmp_path) as guard:
        with pytest.raises(torch.OutOfMemoryError):
            fill()
        for _ in range(5):  # a program that tries again and again
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(GIB, dtype=torch.uint8, device="cuda")
    assert len(guard.watch.reports) == 3
    report = json.loads(guard.watch.reports[0].with_suffix(".json").read_text(encoding="utf-8"))
    named = [one["variable"] for one in report["largest"]]
    assert named[0].startswith("my_activations (test_watch.py:") and named[1].startswith(
        "batch['pixels'] (test_watch.py:"
    )
    later = json.loads(guard.watch.reports[1].with_suffix(".json").read_text(encoding="utf-8"))
    assert later["allocated_bytes"] == 0, "the report keeps nothing alive"


def test_a_report_that_fails_lets_the_error_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise KeyError("broken")

    monkeypatch.setattr("vramcast.features.guard.watch.collect", broken)
    with vramcast.virtual_gpu(CARD), vramcast.guard(report_dir=tmp_path) as guard:
        torch.zeros(1, device="cuda")
        guard.watch.look()
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(100 * GIB, dtype=torch.uint8, device="cuda")
    assert "the out-of-memory report failed" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_innermost_guard_reports(tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    with vramcast.virtual_gpu(CARD), vramcast.guard(report_dir=outer), vramcast.guard(report_dir=inner):
        torch.zeros(1, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(100 * GIB, dtype=torch.uint8, device="cuda")
    assert not outer.exists() and len(list(inner.iterdir())) == 2
