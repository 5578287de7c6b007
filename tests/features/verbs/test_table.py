"""`vramcast table`: every cell is what a prediction of that card, size and batch says."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

import vramcast
from tests.features.verbs.test_scaling import CONV
from vramcast.cli.main import main
from vramcast.errors import UsageError

JOB = "tests.jobs.tiny:JOB"
same_torch = pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="the golden output is of torch 2.11")


@same_torch
def test_golden(capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]) -> None:
    assert main(["table", JOB, "--gpus", "rtx-4090,4GiB,t4"]) == 0
    largest = capsys.readouterr().out
    assert main(["table", JOB, "--gpus", "rtx-4090,4GiB", "--batch", "64,200000"]) == 0
    golden("table", f"{largest}\n{capsys.readouterr().out}")


def test_cells_are_predictions() -> None:
    found = vramcast.table(CONV, ["t4", "4GiB"], [2, 5], resolutions=[32, "32x64"]).table
    assert found.sizes == ("32 × 32", "32 × 64")
    for cell in found.cells:
        height, width = (int(part) for part in cell.size.split(" × "))
        job = {**CONV, "sizes": {"batch": cell.batch, "height": height, "width": width}}
        assert cell.device_bytes == vramcast.predict(job, cell.gpu).device_bytes


def test_the_largest_batch_falls_with_the_resolution() -> None:
    found = vramcast.table(CONV, ["2GiB"], resolutions=[32, 64]).table
    small, large = found.cells
    assert small.batch > 3 * large.batch > 0
    assert "<table>" in vramcast.table(JOB, ["t4"], [1])._repr_html_()


def test_a_size_that_nothing_uses_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", JOB, "--gpus", "t4", "--sequence", "8,16", "--batch", "4"]) == 0
    assert "every sequence gives the same" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", JOB, "--gpus", "t4,a100-40gb", "--batch", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "vramcast-table" and document["version"] == 1
    assert [cell["gpu"] for cell in document["cells"]] == ["t4", "a100-40gb"]
    assert all(cell["fits"] for cell in document["cells"])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([JOB, "--gpus", "rtx-4091"], "did you mean"),
        ([JOB, "--gpus", "t4", "--resolutions", "big"], "resolution big: write a number"),
        ([JOB, "--gpus", "t4", "--resolutions", "99999999"], "sizes.height"),
        ([JOB, "--gpus", "t4", "--batch", "0"], "above zero"),
        ([JOB, "--gpus", ","], "from 1 to 32 values"),
        ([JOB, "--resolutions", "8", "--sequence", "8"], "not allowed with"),
        (["nothing", "--gpus", "t4"], "no such file or folder"),
    ],
)
def test_bad_input_is_a_message(capsys: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    try:
        code = main(["table", *argv])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2
    assert said in capsys.readouterr().err


def test_in_python_too() -> None:
    with pytest.raises(UsageError, match="leave one out"):
        vramcast.table(JOB, ["t4"], resolutions=[8], sequences=[8])
    with pytest.raises(UsageError, match="at least one card"):
        vramcast.table(JOB, [])
