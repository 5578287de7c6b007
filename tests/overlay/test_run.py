"""`vramcast run` and what is left of it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from tests.overlay.conftest import kernel_way
from tests.overlay.tree_of_files import fingerprint
from vramcast.gpus import find_gpu
from vramcast.jobs.validation import make_job
from vramcast.overlay.writes import is_noise
from vramcast.prediction.tracing import trace_job
from vramcast.scripts.runner import run_script

TRAINING = """
import ctypes, os, shutil, signal, sys, tempfile, torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    for _ in range(5):
        model(torch.randn(2, 256, device="cuda")).sum().backward()
        optimizer.step()
"""


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(TRAINING + textwrap.dedent(text))
    return path


def run(path: Path, *options: str, way: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vramcast", "run", "--gpu", "rtx-4090", *options, path.name], cwd=path.parent,
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, **({"VRAMCAST_OVERLAY": way} if way else {}), **environment},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("way", ["kernel", "python"])
def test_nothing_is_left_after_a_kill(tmp_path: Path, way: str) -> None:
    """Nor does compiled code that opens a file by itself reach it."""
    if way == "kernel" and not kernel_way():
        pytest.skip("no mount namespaces here")
    here = tmp_path / "project"
    here.mkdir()
    (here / "precious").write_text("years of work")
    path = script(
        here,
        """
        libc = ctypes.CDLL(None)
        number = libc.open(b"precious", os.O_WRONLY | os.O_TRUNC)
        print("opened", number >= 0, file=sys.stderr)
        libc.unlink(b"precious")
        open("new", "w").write("x")
        print("temporary", tempfile.gettempdir(), file=sys.stderr, flush=True)
        libc.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    before = fingerprint(here)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = run(path, way=way, TMPDIR=str(temporary))
    assert done.returncode == -9
    if "opened True" in done.stderr and way == "python":
        pytest.skip("no Landlock here")
    assert fingerprint(here) == before
    for _ in range(100):
        if not list(temporary.iterdir()):
            break
        time.sleep(0.1)
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_written_through(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"last week's weights")
    (tmp_path / "gone").write_text("x")
    path = script(
        tmp_path,
        """
        os.remove("gone")
        open("log.txt", "w").write("real")
        torch.save(model.state_dict(), "model.pt")
        assert torch.load("model.pt")["weight"].shape == (256, 256)
        torch.save(model.state_dict(), "new.tmp")
        os.replace("new.tmp", "new.pt")
        assert torch.load("new.pt")["weight"].is_cuda
        train()
        """,
    )
    done = run(path, "--full", "--write-through")
    assert done.returncode == 0, done.stderr
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["log.txt", "model.pt", "new.pt", "train.py"]
    assert (tmp_path / "model.pt").read_bytes() == b"last week's weights"
    said = " ".join(done.stdout.split())
    assert "model.pt is left as it is" in said and "new.tmp holds no data" in said
    with pytest.raises(Exception, match="written_by_a_prediction"):
        torch.load(tmp_path / "new.pt", map_location="cpu")


def test_a_script_in_a_process_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint-500").mkdir()
    (tmp_path / "checkpoint-500" / "model.pt").write_text("weights")
    path = script(
        tmp_path,
        """
        shutil.rmtree("checkpoint-500")
        torch.save(model.state_dict(), "model.tmp")
        os.replace("model.tmp", "model.pt")
        assert torch.load("model.pt")["weight"].shape == (256, 256)
        train()
        """,
    )
    before = fingerprint(tmp_path)
    prediction = run_script(str(path), gpu="rtx-4090")
    assert fingerprint(tmp_path) == before
    lines = [note.text for note in prediction.notes if note.topic == "files"]
    assert lines[0].startswith("would have written: model.pt 25") and "KiB" in lines[0]
    assert lines[1] == "would have deleted: checkpoint-500, checkpoint-500/model.pt"


def test_a_factory_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cache.txt").write_text("old")
    (tmp_path / "building.py").write_text(
        "import torch\ndef build():\n    open('cache.txt', 'w').write('new')\n    return torch.nn.Linear(8, 8)\n"
    )
    job = make_job(
        {
            "components": {"model": {"factory": "building.py:build"}},
            "inputs": {"input": {"shape": ["batch", 8]}},
            "sizes": {"batch": 2},
        },
        "job",
    )
    traced = trace_job(job, find_gpu("rtx-4090"))
    assert (tmp_path / "cache.txt").read_text() == "old"
    assert any(note.text.startswith("would have written: cache.txt 3 B (replaced)") for note in traced.trace.notes)


def test_shared_memory_of_loaders_is_no_file_of_the_users() -> None:
    assert is_noise("/dev/shm/sem.mp-1") and is_noise("/dev/shm/torch_20310_2589731069_8")
    assert not is_noise("/dev/shm/mine.pt")
