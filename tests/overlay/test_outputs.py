"""Files that vramcast itself writes: whole or not at all, over nothing that is something else, and on the real disk."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.overlay.conftest import kernel_way
from tests.samples import transformer
from vramcast.base.outputs import write_file
from vramcast.cli.main import main
from vramcast.errors import UsageError
from vramcast.trace import StepTrace

FOLDER = Path(__file__).parents[1] / "jobs" / "folders" / "bert-base"
SCRIPT = """
import os, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(9):
    open("log.txt", "w").write("x")
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


def command(*words: str, cwd: Path | None = None, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vramcast", *words], capture_output=True, text=True, check=False, cwd=cwd, timeout=120,
        **options,  # type: ignore[call-overload]
    )  # fmt: skip


def disk_is_full() -> None:
    """As far as a file of more than 100 bytes goes: the write fails in the middle."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    without_bytecode = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # it would be cut off, too
    done = command("init", "--schema", "job.json", cwd=tmp_path, preexec_fn=disk_is_full, env=without_bytecode)
    assert done.returncode == 2 and done.stderr == "vramcast: cannot write job.json: File too large\n"
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_trace_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    transformer().save(path)
    before = path.read_bytes()
    code = "import sys; from tests.samples import transformer; transformer(steps=2).save(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False, preexec_fn=disk_is_full,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert "cannot write" in done.stderr and path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.trace"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--schema", "/dev/full"]) == 2
    assert "/dev/full" in capsys.readouterr().err
    with pytest.raises(UsageError, match="cannot write /dev/full: No space left on device"):
        write_file(Path("/dev/full"), b"x" * 100_000)


def test_an_empty_file_does_not_block_init(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "schema.json"
    path.touch()
    assert main(["init", "--schema", str(path)]) == 0 and json.loads(path.read_text())
    before = path.read_bytes()
    assert main(["init", "--schema", str(path)]) == 2 and path.read_bytes() == before
    assert "exists already and is left as it is" in capsys.readouterr().err


def test_only_a_file_of_the_same_kind_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, thesis = tmp_path / "run.trace", tmp_path / "thesis.tex"
    transformer().save(trace)
    thesis.write_text("years of work")
    chrome = tmp_path / "step.json"
    assert main(["show", str(trace), "--chrome", str(thesis)]) == 2
    assert thesis.read_text() == "years of work"
    assert f"{thesis} exists and is something else; --force writes over it" in capsys.readouterr().err
    assert main(["show", str(trace), "--chrome", str(trace)]) == 2, "a trace is not a step for Perfetto"
    for name, option in (("script.py", "--save"), ("script.py", "--chrome")):
        (tmp_path / name).write_text("pass")
        assert main(["run", option, str(tmp_path / name), str(tmp_path / name)]) == 2
        assert (tmp_path / name).read_text() == "pass"
    capsys.readouterr()
    chrome.write_text('{"displayTimeUnit": "ms", "otherData": {"format": "vramcast-step"}, "traceEvents": []}')
    main(["show", str(trace), "--chrome", str(chrome)])
    assert "exists" not in capsys.readouterr().err


def test_links_modes_and_devices(tmp_path: Path) -> None:
    real = tmp_path / "real" / "out.json"
    real.parent.mkdir()
    real.write_text("old")
    real.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(real)
    write_file(link, b"new")
    assert link.is_symlink() and real.read_text() == "new" and real.stat().st_mode & 0o777 == 0o640
    write_file(Path(os.devnull), b"gone")
    with pytest.raises(UsageError, match="exists already"):
        write_file(real, b"other", replace=False)
    long = tmp_path / ("x" * 300)
    with pytest.raises(UsageError, match="File name too long"):
        write_file(long, b"x")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link.json", "out.json", "real"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["kernel", "python"])
def test_outputs_reach_the_disk_and_the_scripts_files_do_not(tmp_path: Path, way: str) -> None:
    if way == "kernel" and not kernel_way():
        pytest.skip("no mount namespaces here")
    here = tmp_path / "my project"
    here.mkdir()
    (here / "train.py").write_text(SCRIPT)
    (tmp_path / "elsewhere").mkdir()
    (here / "link").symlink_to(tmp_path / "elsewhere")
    environment = {**os.environ, "VRAMCAST_OVERLAY": way}
    words = ("run", "--gpu", "rtx-4090", "--save", "a.trace", "--chrome", "link/step.json", "--json", "train.py")
    done = command(*words, cwd=here, env=environment)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)["files"]
    assert files["written"] == [{"path": str(here / "log.txt"), "bytes": 1, "replaces": False}]
    assert sorted(path.name for path in here.iterdir()) == ["a.trace", "link", "train.py"]
    assert StepTrace.load(here / "a.trace").steps == 3
    assert json.loads((tmp_path / "elsewhere" / "step.json").read_text())["traceEvents"]
    assert command(*words, cwd=here, env=environment).returncode == 0, "a trace of ours may be replaced"
