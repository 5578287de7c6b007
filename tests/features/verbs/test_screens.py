"""One screen for each verb: at most 25 lines, at 80 and at 200 columns, whether it fits or not; and str()."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import vramcast
from tests.jobs import tiny
from vramcast.cli.main import main
from vramcast.report.page import Line
from vramcast.report.screen import MOST_LINES, Section, compose, wrapped

JOB = "tests.jobs.tiny:JOB"
SCRIPT = """\
import torch
from torch import nn
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(20_000, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FEW = "batch,checkpointing,offload,gpus,optimizer,loss"
same_torch = pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="the golden output is of torch 2.11")


def screens(argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """At both widths."""
    found = []
    for width in (80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        main(argv)
        out = capsys.readouterr().out
        lines = out.splitlines()
        assert 3 < len(lines) <= MOST_LINES and max(map(len, lines)) <= width
        found.append(f"-- {width} columns\n{out}")
    assert max(map(len, found[1].splitlines())) > 80, "a wide terminal is used"
    return "\n".join(found).replace(torch.__version__, "2.11.0")


FITS, DOES_NOT_FIT = ["--gpu", "rtx-4090"], ["--gpu", "4GiB", "--batch", "200000"]
ADVISE = ["advise", JOB, "--keep", FEW]
COMPARE = ["compare", JOB, "#inference", "--scenario", "sgd: optimizer=sgd"]
CASES = {
    "screen_predict_fits": ["predict", JOB, *FITS],
    "screen_predict_does_not_fit": ["predict", JOB, *DOES_NOT_FIT],
    "screen_check_fits": ["check", JOB, *FITS],
    "screen_check_does_not_fit": ["check", JOB, *DOES_NOT_FIT],
    "screen_advise_fits": [*ADVISE, *FITS],
    "screen_advise_does_not_fit": [*ADVISE, *DOES_NOT_FIT],
    "screen_compare_fits": [*COMPARE, *FITS],
    "screen_compare_does_not_fit": [*COMPARE, *DOES_NOT_FIT],
    "screen_run_fits": ["run", "--gpu", "rtx-4090", "train.py"],
    "screen_run_does_not_fit": ["run", "--gpu", "1GiB", "train.py"],
}


@same_torch
@pytest.mark.parametrize("name", CASES)
def test_golden(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Callable[[str, str], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT, encoding="utf-8")
    golden(name, screens(CASES[name], monkeypatch, capsys))


def test_the_whole_need_of_a_script_is_known(tmp_path: Path) -> None:
    """In a process of its own, which forks before anything was traced."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")

    def told(gpu: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "vramcast", "run", "--gpu", gpu, "--json", str(script)]
        found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=False).stdout)
        return found

    small, large = told("1GiB"), told("8GiB")
    assert not small["fits"] and not small["at_least"] and large["fits"]
    assert small["peak_reserved_bytes"] == large["peak_reserved_bytes"]
    assert small["limit_bytes"] < 1024**3
    assert any(note["topic"] == "run twice" for note in small["notes"])


def test_results_are_shown_as_the_screen() -> None:
    for result in (
        vramcast.predict(JOB, "rtx-4090"),
        vramcast.predict(JOB, "rtx-4090").prediction,
        vramcast.check(JOB, "rtx-4090"),
        vramcast.explain(JOB, "model.blocks.0", gpu="rtx-4090"),
        vramcast.table(JOB, gpus=["rtx-4090"], batches=[1, 2]),
        vramcast.what_if(JOB, "rtx-4090", keep=["batch", "precision", "optimizer"]),
    ):
        text = str(result)
        assert 1 < len(text.splitlines()) <= MOST_LINES and max(map(len, text.splitlines())) <= 80
        assert len(repr(result)) < 120
        html = result._repr_html_()
        assert html.startswith('<div class="vramcast">') and json.dumps(result.to_document())


def test_errors_are_documents_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "./nowhere", "--json"]) == 2
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["exit_code"] == 2 and "nowhere" in document["error"] and "nowhere" in err
    with pytest.raises(SystemExit) as ended:
        main(["check", "--json", "--no-such-option"])
    assert ended.value.code == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2
    with pytest.raises(SystemExit):
        main(["check", "--no-such-option"])
    assert not capsys.readouterr().out


def test_a_script_may_have_an_option_called_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise ValueError('broken')\n", encoding="utf-8")
    assert main(["run", "--gpu", "rtx-4090", str(script), "--json"]) == 3
    assert not capsys.readouterr().out
    assert main(["run", "--gpu", "rtx-4090", "--json", str(script)]) == 3
    assert json.loads(capsys.readouterr().out)["exit_code"] == 3


def test_a_sentence_that_is_cut_ends_in_an_ellipsis() -> None:
    long = wrapped("assumed: " + "all of it is trained, " * 8, 80, most=3)
    assert [line.continues for line in long] == [False, True, True]
    lines = compose([Section((Line("a verdict"),)), Section(tuple(long))], most=2)
    assert len(lines) == 2 and lines[1].text.endswith(" …") and len(lines[1].text) <= 80
    path = wrapped("would have written: experiments/train_super_resolution/" + "models/" * 4 + "b.pth 5 MiB", 80)
    (cut,) = compose([Section(tuple(path))], most=1)
    assert cut.text == "would have written: experiments/train_super_resol…s/models/models/models/b.pth …"
    assert wrapped(path[0].text + " " + path[1].text, 80, most=1)[0].text == cut.text
    whole = compose([Section((Line("one"), Line("another")), least=1)], most=1)
    assert [line.text for line in whole] == ["one"], "a line of its own is just left out"


def test_no_larger_batch_is_named_where_the_job_barely_fits() -> None:
    """The batch that would fit keeps the margin free, as the verdict does."""
    job = {**tiny.JOB, "sizes": {"batch": 200_000}}
    free = vramcast.predict(job, gpu="rtx-4090")
    tight = vramcast.predict(job, gpu="rtx-4090", memory=free.prediction.peak_reserved_bytes)
    assert free.prediction.comfortable and "would fit" in str(free)
    assert tight.prediction.barely_fits and "but barely" in str(tight) and "would fit" not in str(tight)
