"""The exit code is the verdict whatever becomes of standard output and error. Seen: 0 for what does not fit, piped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.samples import transformer

_FULL = "vramcast: cannot write to standard output: No space left on device\n"


@pytest.fixture
def command(tmp_path: Path) -> str:
    transformer().save(tmp_path / "run.trace")
    return f"'{sys.executable}' -m vramcast show '{tmp_path}/run.trace' --json"


@pytest.mark.parametrize(
    ("limit", "streams", "code", "said"),
    [
        ("1KiB", "| true", 1, ""),
        ("1KiB", "| head -c 10", 1, ""),
        ("1KiB", ">&-", 1, ""),
        ("1KiB", "> /dev/full", 1, _FULL),
        ("1KiB", "> /dev/full 2> /dev/full", 1, ""),
        ("1KiB", "2>&- | cat", 1, ""),
        ("1KiB", "<&- >&- 2>&-", 1, ""),
        ("1TiB", "| true", 0, ""),
        ("1TiB", ">&-", 0, ""),
        ("1TiB", "> /dev/full", 2, _FULL),
        ("lots", "2>&-", 2, ""),
        ("lots", "2> /dev/full", 2, ""),
    ],
)
def test_exit_code(command: str, limit: str, streams: str, code: int, said: str) -> None:
    line = f"{command} --limit {limit} {streams}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_a_reader_that_is_slower_than_we_are(command: str) -> None:
    """A pipe that does not wait: what is written next fails until the reader has caught up."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with subprocess.Popen(["bash", "-c", f"exec {command} --limit 1KiB"], stdout=write) as process:
        os.close(write)
        with open(read, "rb") as file:
            assert file.read().rstrip().endswith(b"}")
    assert process.returncode == 1


def test_code_of_a_job_cannot_say_that_it_fits(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys\n\ndef build():\n    sys.exit(0)\n")
    code = (
        "import sys; from vramcast.cli import main; from types import SimpleNamespace as Verb;"
        "sys.path.insert(0, ''); import mine;"
        "verb = Verb(__name__='vramcast.cli.commands.show', __doc__='x', add_arguments=lambda parser: None,"
        " execute=lambda args: mine.build()); main.commands = lambda: (verb,); sys.argv[1:] = ['show']; main.entry()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "vramcast: the job's own code ended the process: sys.exit(0)\n")
