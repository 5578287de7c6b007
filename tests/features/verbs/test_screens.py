"""One screen for each verb: at most 25 lines, at 80 and at 200 columns, whether it fits or not; and str()."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import vramcast
from vramcast.cli.main import main
from vramcast.report.screen import MOST_LINES

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


CASES = {
    "predict": ["predict", JOB],
    "check": ["check", JOB],
    "advise": ["advise", JOB, "--keep", FEW],
    "compare": ["compare", JOB, "#inference", "--scenario", "sgd: optimizer=sgd"],
}


@same_torch
@pytest.mark.parametrize("verb", CASES)
@pytest.mark.parametrize("fits", [True, False])
def test_golden(
    verb: str,
    fits: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Callable[[str, str], None],
) -> None:
    more = ["--gpu", "rtx-4090"] if fits else ["--gpu", "4GiB", "--batch", "200000"]
    text = screens([*CASES[verb], *more], monkeypatch, capsys)
    golden(f"screen_{verb}_{'fits' if fits else 'does_not_fit'}", text)


@same_torch
@pytest.mark.parametrize("fits", [True, False])
def test_golden_of_a_script(
    fits: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Callable[[str, str], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT, encoding="utf-8")
    text = screens(["run", "--gpu", "rtx-4090" if fits else "1GiB", "train.py"], monkeypatch, capsys)
    golden(f"screen_run_{'fits' if fits else 'does_not_fit'}", text)


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
