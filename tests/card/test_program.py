"""A module is run as `python -m` runs it, and with the environment that a launcher makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.errors import CannotPredict, UsageError
from vramcast.scripts.runner import run_script

LOOK = """
import json, os, sys, torch
seen = dict(
    argv=sys.argv, path=sys.path[0], name=__name__, package=__package__, file=__file__,
    spec=__spec__.name if __spec__ else None, main=sys.modules["__main__"].__dict__ is globals(),
    rank=os.environ.get("RANK"),
)
print(json.dumps(seen))
if torch.cuda.is_available():
    torch.zeros(4, device="cuda")
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "a_package"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("value = 3\n")
    (folder / "inner" / "__init__.py").write_text("")
    (folder / "inner" / "helper.py").write_text("value = 4\n")
    (folder / "inner" / "train.py").write_text("from .. import value\nfrom .helper import value as other\n" + LOOK)
    (folder / "__main__.py").write_text("from .inner import helper\n" + LOOK)
    (tmp_path / "script.py").write_text(LOOK)
    monkeypatch.chdir(tmp_path)
    yield tmp_path  # type: ignore[misc]
    for name in [name for name in sys.modules if name.partition(".")[0] == "a_package"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["a_package.inner.train", "a_package", "script"])
def test_as_python_runs_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", name, "--lr", "1"]
    theirs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    run_script(name, ["--lr", "1"], gpu="rtx-4090", is_module=True)
    assert json.loads(capsys.readouterr().out) == theirs


def test_a_script_has_no_spec(capsys: pytest.CaptureFixture[str]) -> None:
    theirs = json.loads(
        subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=True).stdout
    )
    run_script("script.py", gpu="rtx-4090")
    ours = json.loads(capsys.readouterr().out)
    assert ours | {"file": None} == theirs | {"file": None}


def test_the_environment_is_set_and_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    run_script("script.py", gpu="rtx-4090", environment={"RANK": "0"})
    assert json.loads(capsys.readouterr().out)["rank"] == "0"
    assert "RANK" not in os.environ
    prediction = run_script(
        "script.py", gpu="rtx-4090", environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    )
    assert prediction.trace is not None and prediction.trace.allocator_conf == "expandable_segments:True"


def test_a_print_of_the_scripts_own_is_put_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where only the first of several processes may print: the answer is not the script's to change."""
    (tmp_path / "quiet.py").write_text(
        "import builtins, torch\nbuiltins.print = lambda *words, **options: None\ntorch.ones(2, device='cuda')\n"
    )
    run_script("quiet.py", gpu="rtx-4090")
    print("the verdict")
    assert "the verdict" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a_package.nothing", "there is no module of that name here"),
        ("nothing_at_all", "there is no module of that name here"),
        ("script.py", "without .py, and with dots for folders"),
        ("a_package.inner", "it is a package, and has no __main__.py"),
        ("math", "no Python source"),
    ],
)
def test_what_is_no_module(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_script(name, gpu="rtx-4090", is_module=True)


def notebook(*cells: str, language: str = "python") -> str:
    listed = [{"cell_type": "markdown", "source": ["# Title"]}, *({"cell_type": "code", "source": c} for c in cells)]
    return json.dumps({"cells": listed, "metadata": {"kernelspec": {"language": language}}, "nbformat": 4})


def test_a_notebook_is_run_cell_by_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.ipynb").write_text(
        notebook(
            "%matplotlib inline\nimport torch\n!pip install torch\nfiles = !ls\nprint(files)",
            "%%bash\nrm -rf data",
            "%%time\nif True:\n    %load_ext tensorboard\n    x = torch.zeros(1 << 20, device='cuda')",
            "print(100\n% 7)\ndisplay(x.shape)",
        )
    )
    prediction = run_script("train.ipynb", gpu="rtx-4090")
    assert prediction.peak_allocated_bytes == 4 << 20
    assert capsys.readouterr().out == "[]\n2\ntorch.Size([1048576])\n"


def test_errors_in_a_notebook_name_the_line(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(notebook("import torch", "x = 1\nraise ValueError('no data')"))
    with pytest.raises(CannotPredict, match=r"train\.ipynb:4: the script failed: ValueError: no data"):
        run_script("train.ipynb", gpu="rtx-4090")
    for text, message in (
        ("{}", "not a notebook"),
        ("no JSON", "not a notebook"),
        (notebook("1", language="R"), "a notebook in R, and vramcast runs Python"),
    ):
        (tmp_path / "train.ipynb").write_text(text)
        with pytest.raises(UsageError, match=message):
            run_script("train.ipynb", gpu="rtx-4090")


def test_a_shell_script_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/bash\npython train.py --lr 3\n")
    with pytest.raises(UsageError, match=r"train\.sh is a shell script, .*: write the python command"):
        run_script("train.sh", gpu="rtx-4090")
