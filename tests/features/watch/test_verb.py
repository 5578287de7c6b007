"""`vramcast watch` as a whole: commands, processes, signals, logs, exit codes. The cards are constructed."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gpus.conftest import Machine
from tests.gpus.constructed import Card
from vramcast.base.units import GIB
from vramcast.cli.main import main
from vramcast.features.watch.log import read_log

ROOT = Path(__file__).parents[3]
FULL = Card(used=23 * GIB)
# The verb in a process of its own, with cards.
VERB = [
    sys.executable,
    "-c",
    "import sys\n"
    "from tests.gpus.constructed import Card, machine\n"
    "from lab.measuring.nvml_calls import Replayer, use_library\n"
    "from vramcast.cli.main import main\n"
    "with use_library(Replayer(machine(Card(used=3 * 2**30)))):\n"
    "    sys.exit(main(sys.argv[1:]))",
    "watch",
]


def run(capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["watch", *argv])
    out, err = capfd.readouterr()
    return code, out, err


def python(code: str) -> str:
    return f'{shlex.quote(sys.executable)} -c "{code}"'


def test_once(cards_here: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    cards_here(Card(used=3 * GIB))
    assert run(capfd, "--once") == (0, "00:00  0: 3.00 GiB of 23.99 GiB used (13%), 0 % busy, 40 °C\n", "")
    code, out, _ = run(capfd, "--once", "--json", "--predicted", "4GiB")
    sample, summary = map(json.loads, out.splitlines())
    assert code == 0 and sample["used_bytes"] == 3 * GIB and sample["predicted_bytes"] == 4 * GIB
    assert summary["format"] == "vramcast-watch" and summary["gpus"][0]["peak_bytes"] == 3 * GIB


@pytest.mark.parametrize(("ending", "expected"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("pass", 0)])
def test_a_command_is_watched_and_its_exit_code_is_ours(
    cards_here: Machine, capfd: pytest.CaptureFixture[str], tmp_path: Path, ending: str, expected: int
) -> None:
    cards_here(Card(used=3 * GIB))
    log = tmp_path / "run.jsonl"
    command = python(f"import os, sys, time; print('hello'); sys.stdout.flush(); time.sleep(0.3); {ending}")
    code, out, err = run(capfd, "--command", command, "--interval", "0.1", "--log", str(log), "--predicted", "2GiB")
    assert code == expected
    assert out == "hello\n"  # the command's own; ours is on standard error
    assert "card 0: peak 0.00 GiB" in err and "predicted 2.00 GiB" in err
    assert len(read_log(log).samples) >= 2


def test_a_command_after_two_dashes(cards_here: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    cards_here(Card())
    assert run(capfd, "--interval", "0.1", "--", sys.executable, "-c", "raise SystemExit(3)")[0] == 3


def test_a_warning_leaves_the_exit_code_alone(cards_here: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    cards_here(FULL)
    code, _, err = run(capfd, "--command", python("import time; time.sleep(0.3)"), "--interval", "0.05")
    assert code == 0
    assert err.count("warning: card 0 is above 90%: 23.00 of 23.99 GiB used") == 1
    assert "warning" not in run(capfd, "--once", "--threshold", "0.99")[2]


def test_a_process_is_followed_until_it_ends(cards_here: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
    cards_here(Card(used=3 * GIB, compute=((other.pid, 2 * GIB),)))
    code, out, _ = run(capfd, "--pid", str(other.pid), "--interval", "0.1")
    assert code == 0 and other.wait() == 0
    assert "watched 2.00 GiB" in out
    assert "card 0: peak 2.00 GiB at 00:00, of 23.99 GiB (8%)" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--pid", "4194305"], "--pid 4194305: there is no such process here"),
        (["--command", "no-such-program-here"], "cannot start 'no-such-program-here'"),
        (["--command", "python 'train.py"], "No closing quotation"),
        (["--command", ""], "it is empty"),
        (["--command", "true", "--pid", "1"], "leave one out"),
        (["--command", "true", "--once"], "leave one out"),
        (["--replay", "x.csv", "--once"], "leave one out"),
        (["--replay", "none.csv"], "no such file"),
        (["--log", "x.txt", "--once"], "must end in .csv or .jsonl"),
        (["--device", "5", "--once"], "there is no such card here"),
        (["--predicted", "lots", "--once"], "cannot read 'lots' as a size"),
    ],
)
def test_mistakes(cards_here: Machine, capfd: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    cards_here(Card())
    code, out, err = run(capfd, *argv)
    assert code == 2 and out == ""
    assert err.startswith("vramcast: ") and err.count("\n") == 1 and message in err


@pytest.mark.parametrize("argv", [["--interval", "0"], ["--interval", "x"], ["--threshold", "90"], ["--pid", "-3"]])
def test_bad_numbers(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["watch", *argv])
    assert caught.value.code == 2


def test_no_gpu_here(cards_here: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    cards_here()
    code, _, err = run(capfd)
    assert code == 2
    assert err == "vramcast: no NVIDIA GPU here to watch: NVML lists no card; --replay draws a recorded log\n"


def started(*argv: str, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen([*VERB, *argv], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_signals_end_a_watch_cleanly(number: int, expected: int, tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    log = tmp_path / "run.csv"
    watching = started("--interval", "0.1", "--log", str(log))
    assert watching.stdout is not None
    watching.stdout.readline()
    watching.send_signal(number)
    out, err = watching.communicate(timeout=30)
    assert watching.returncode == expected
    assert "card 0: peak 3.00 GiB" in out and err == ""
    assert log.read_text().endswith("\n") and read_log(log).samples


def test_sigterm_ends_the_watch_and_not_the_command() -> None:
    pytest.importorskip("pynvml")
    watching = started("--interval", "0.1", "--command", python("import time; print('up', flush=True); time.sleep(20)"))
    assert watching.stdout is not None and watching.stderr is not None
    assert watching.stdout.readline() == "up\n"
    watching.terminate()
    assert watching.wait(timeout=30) == 143
    said = next(line for line in watching.stderr if "goes on as process" in line)
    pid = int(said.split()[-1])
    os.kill(pid, 0)  # it is still there
    os.kill(pid, signal.SIGKILL)
    watching.communicate()


def test_in_a_terminal() -> None:
    """Drawn below the command's lines; Ctrl-C reaches the command, whose exit code is ours; the cursor is back."""
    pytest.importorskip("pynvml")
    ours, theirs = pty.openpty()
    command = python("import time; print('step', 1); print('half' * 2, end='', flush=True); time.sleep(20)")
    watching = subprocess.Popen(
        [*VERB, "--interval", "0.1", "--predicted", "2GiB", "--command", command],
        cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, close_fds=True,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "90", "LINES": "40"},
        preexec_fn=lambda: _own_terminal(),
    )  # fmt: skip
    os.close(theirs)
    seen = _read_until(ours, b"halfhalf")
    os.write(ours, b"\x03")
    seen += _read_until(ours, None)
    os.close(ours)
    assert watching.wait(timeout=30) == 130
    text = seen.decode(errors="replace")
    assert "step 1" in text and "predicted" in text and "0: NVIDIA GeForce RTX 4090" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "card 0: peak 0.00 GiB" in text


def _own_terminal() -> None:
    """Ctrl-C is a signal only in the terminal that a session controls."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(terminal: int, words: bytes | None) -> bytes:
    seen = b""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # nobody holds the other end any more
            return seen
        seen += chunk
        if not chunk or (words is not None and words in seen):
            return seen
    raise AssertionError(f"waited in vain for {words!r}; saw {seen[-2000:]!r}")


def test_the_predicted_peak_of_a_job(cards_here: Machine, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Predicted for the card here, before anything is watched."""
    cards_here(Card(used=3 * GIB))
    (tmp_path / "model.py").write_text("import torch\ndef build():\n    return torch.nn.Linear(64, 64)\n")
    job = tmp_path / "job.yaml"
    job.write_text(
        "components:\n  model:\n    factory: model.py:build\n    inputs: [x]\n"
        "inputs:\n  x: {shape: [batch, 64]}\nloss: mean\n"
    )
    code, out, err = run(capfd, "--once", "--json", "--allow-code", "--job", str(job))
    assert code == 0, err
    predicted = json.loads(out.splitlines()[0])["predicted_bytes"]
    assert main(["predict", str(job), "--allow-code", "--gpu", "rtx-4090", "--json"]) == code == 0
    assert predicted == json.loads(capfd.readouterr().out)["device_bytes"]
