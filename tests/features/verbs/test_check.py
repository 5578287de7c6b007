"""`vramcast check JOB`: the verdict against a card or what is free, the pointer, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

import vramcast
from vramcast.base.units import GIB
from vramcast.cli.main import main
from vramcast.gpus import state
from vramcast.gpus.survey import GpuProcess, LocalGpu, Survey
from vramcast.jobs.load import with_overrides
from vramcast.jobs.validation import make_job

JOB = "tests.jobs.tiny:JOB"
same_torch = pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="the golden output is of torch 2.11")


def local(free_gib: float, *processes: GpuProcess) -> Survey:
    free = int(free_gib * GIB)
    return Survey(cards=(
        LocalGpu(index=0, name="NVIDIA GeForce RTX 4090", uuid="GPU-0", total_bytes=24 * GIB,
                 used_bytes=24 * GIB - free, free_bytes=free, processes=processes),
    ))  # fmt: skip


@same_torch
def test_golden(capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]) -> None:
    assert main(["check", JOB, "--gpu", "rtx-4090"]) == 0
    fits = capsys.readouterr().out
    assert main(["check", JOB, "--memory", "4GiB", "--batch", "200000"]) == 1
    golden("check", f"{fits}\n{capsys.readouterr().out}")


def test_what_is_free_counts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = GpuProcess(4711, "python", 20 * GIB)
    monkeypatch.setattr(state, "_by_nvml", lambda: local(3.0, trainer))
    assert main(["check", JOB, "--batch", "200000"]) == 1
    out = capsys.readouterr().out
    assert "Does not fit what is free on RTX 4090 (device 0)" in out
    assert "3.00 GiB free of 24.00 GiB, 21.00 GiB in use: python (4711) 20.00 GiB" in out
    assert "It would fit this card if nothing else used it: python (4711)" in out
    assert main(["check", JOB, "--batch", "1000", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "vramcast-check" and document["version"] == 1
    assert document["available_bytes"] == 3 * GIB
    assert document["local"]["processes"][0]["pid"] == 4711
    assert document["headroom_bytes"] == document["available_bytes"] - document["needed_bytes"]


def test_a_named_card_is_taken_although_one_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_by_nvml", lambda: local(1.0))
    assert vramcast.check(JOB, gpu="a100-80gb").verdict.local is None


def test_the_pointer_was_tried() -> None:
    job = {**_tiny(), "sizes": {"batch": 200_000}}
    first, *_ = vramcast.check(job, memory="4GiB").verdict.changes
    assert vramcast.check(with_overrides(make_job(job, "job"), first.overrides), memory="4GiB").fits
    found = vramcast.check(job, memory="4GiB", changes=False)
    assert found.verdict.pointer.kind == "batch" and not found.verdict.changes
    batch = int(found.verdict.pointer.text.split("--batch ")[1].split(",")[0].rstrip("."))
    assert vramcast.check({**_tiny(), "sizes": {"batch": batch}}, memory="4GiB").fits
    wide = {"factory": "tests.jobs.tiny:mixer", "arguments": {"width": 8192}}
    card = vramcast.check({**_tiny(), "components": {"model": wide}, "sizes": {"batch": 1}}, memory="2GiB")
    assert card.verdict.pointer.kind == "card"


def test_a_notebook() -> None:
    html = vramcast.check(JOB, gpu="rtx-4090")._repr_html_()
    assert html.startswith('<div class="vramcast">') and "Fits an RTX 4090" in html


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["no-such-folder"], "no such file or folder: no-such-folder"),
        ([JOB, "--gpu", "rtx-4091"], "did you mean"),
        ([JOB, "--memory", "lots"], "cannot read 'lots' as a size"),
        ([JOB, "--memory", "100MiB"], "too small for a CUDA context"),
        ([JOB, "--gpu", "rtx-4090", "--memory", "100MiB"], "a CUDA context alone takes"),
        ([JOB, "--device", "0"], "there is no NVIDIA GPU here"),
        ([JOB, "--gpu", "t4", "--device", "0"], "leave one out"),
        ([JOB, "--set", "sizes.batc=3"], "sizes.batc"),
        ([f"{JOB}#nope"], "there is no scenario 'nope'"),
    ],
)
def test_bad_input_is_a_message(capsys: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    assert main(["check", *argv]) == 2
    out, err = capsys.readouterr()
    assert not out and said in err and "Traceback" not in err


def _tiny() -> dict[str, object]:
    from tests.jobs.tiny import JOB as job

    return dict(job)
