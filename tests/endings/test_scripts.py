"""Every way in which a script ends, or goes on: the exit code is the verdict, no traceback is ours, no process is left.

Seen before: training in a thread printed a traceback of ours, a process that ran out of memory was lost ("fits"),
os._exit(0) and closed streams took the verdict with them, threads that never end kept the process.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.context
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.endings.scripts import DOES_NOT_FIT, ENDINGS, FITS, STREAMS, Ending
from vramcast.base.processes import children_of
from vramcast.cli.main import main


def left_after(processes: set[int]) -> set[int]:
    """Children that are there beside `processes`; those that were killed may take a moment to be gone."""
    for _ in range(100):
        if set(children_of(os.getpid())) <= processes:
            break
        time.sleep(0.1)
    return set(children_of(os.getpid())) - processes


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
def test_ending(
    ending: Ending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(multiprocessing.context._default_context, "_actual_context", None)  # as in a process of its own
    Path("train.py").write_text(ending.text)
    processes = set(children_of(os.getpid()))
    # What a script does to its own process and others is looked at here; the overlay has tests of its own.
    code = main(["run", "--full", "--write-through", "--gpu", "rtx-4090", "train.py"])
    out, err = capfd.readouterr()
    assert code == ending.code, out + err
    assert ending.says in " ".join((out + err).split())
    assert "vramcast" not in err or code == 3, "no line of ours is in a traceback"
    assert {FITS: "Fits", DOES_NOT_FIT: "Does not fit"}.get(code, "") in out
    assert not left_after(processes)
    assert threading.main_thread().is_alive() and os.getcwd() == os.fspath(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ending", STREAMS, ids=lambda ending: ending.name)
def test_the_report_is_printed_whatever_the_script_does_to_its_streams(ending: Ending, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ending.text)
    command = [sys.executable, "-m", "vramcast", "run", "--gpu", "rtx-4090", "--json", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert json.loads(done.stdout)["fits"] is False, "the document and nothing else"
    assert "Traceback" not in done.stderr


def test_semaphores_of_a_script_that_fails_are_taken_back(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import multiprocessing\nlock = multiprocessing.get_context('spawn').Lock()\n1 / 0\n"
    )
    command = [sys.executable, "-m", "vramcast", "run", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 3
    assert "KeyError" not in done.stderr and "/dev/shm" not in done.stderr + done.stdout
