"""Workers end with whoever started them, and answers leave no file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.attacks import signals
from vramcast.base.processes import children_of, seconds_of_work
from vramcast.features.advise.runs import Runs
from vramcast.gpus import find_gpu

_PARENT = """
import os, subprocess, sys, time
from vramcast.base.processes import end_with_parent, ending_with_this
{start}
print(os.getpid(), pid, flush=True)
time.sleep(1000)
"""
_FORK = """
parent = os.getpid()
pid = os.fork()
if pid == 0:
    end_with_parent(parent, by_looking={by_looking})
    time.sleep(1000)
"""
_PROGRAM = "pid = subprocess.Popen(['sleep', '1000'], preexec_fn=ending_with_this()).pid"


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] != b"Z"
    except OSError:
        return False


def wait_until_gone(pid: int) -> bool:
    until = time.monotonic() + 30
    while is_there(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_there(pid)


@pytest.mark.parametrize(
    "start",
    [_FORK.format(by_looking=False), _FORK.format(by_looking=True), _PROGRAM],
    ids=["fork", "other systems", "program"],
)
def test_what_was_started_ends_with_a_process_that_is_killed(start: str) -> None:
    code = _PARENT.format(start=start)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        _, child = map(int, parent.stdout.readline().split())
        assert is_there(child)
        parent.kill()
    assert wait_until_gone(child)


def test_children_and_their_work() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            assert child.pid in children_of(os.getpid())
            until = time.monotonic() + 30
            while seconds_of_work([child.pid]) < 0.05 and time.monotonic() < until:
                time.sleep(0.02)
            assert seconds_of_work([child.pid]) >= 0.05
        finally:
            child.kill()
    assert child.pid not in children_of(os.getpid()) and seconds_of_work([child.pid]) == 0


WAITS_FOR_A_WORKER = """
import subprocess, sys
works = "import time; [None for _ in iter(lambda: time.process_time() < 0.5, False)]; print('done', flush=True)"
subprocess.run([sys.executable, "-c", works])
sys.stdin.read()
"""


def test_the_work_of_a_process_is_that_of_its_workers_too() -> None:
    """As a training that waits for its data loader: it is not idle, and what has ended still counts."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WAITS_FOR_A_WORKER], **pipes) as waits:  # type: ignore[call-overload]
        until = time.monotonic() + 30
        while seconds_of_work([waits.pid]) < 0.3 and time.monotonic() < until:
            time.sleep(0.02)
        while_it_worked = seconds_of_work([waits.pid])
        assert waits.stdout.readline() == b"done\n"
        while children_of(waits.pid) and time.monotonic() < until:
            time.sleep(0.02)
        assert seconds_of_work([waits.pid]) >= while_it_worked >= 0.3


@pytest.fixture
def python_handles_ctrl_c() -> Iterator[None]:
    """A shell starts what runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def two_workers() -> Runs:
    return Runs(find_gpu("rtx-4090"), steps=3, workers=2, progress=lambda text: None)


def _work(seconds: float) -> None:
    time.sleep(seconds)


def test_an_interrupted_call_leaves_no_workers(python_handles_ctrl_c: None) -> None:
    """As with Ctrl-C in a notebook. Seen: two workers went on with what nobody waited for."""
    workers: list[int] = []
    with pytest.raises(KeyboardInterrupt), two_workers() as runs:
        wait = runs.start(_work, 1000.0, "")
        assert runs._pool is not None
        workers += list(runs._pool._processes)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        wait()
    assert len(workers) == 2
    assert all(wait_until_gone(pid) for pid in workers)


def test_a_worker_leaves_ctrl_c_to_its_parent() -> None:
    with two_workers() as runs:
        assert runs._pool is not None
        answer = runs.start(signal.getsignal, signal.SIGINT, "")
        assert answer() == signal.SIG_IGN
        for pid in runs._pool._processes:
            os.kill(pid, signal.SIGINT)
        assert runs.start(abs, -3, "")() == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "number"),
    [("advise", signal.SIGTERM), ("run", signal.SIGKILL), ("guard", signal.SIGKILL)],
)
def test_a_signal_in_the_middle_leaves_nothing(verb: str, number: int) -> None:
    """Seen: two workers of `advise` after SIGTERM. `python -m lab.attacks.signals` does the same at random moments."""
    with signals.folder(b"") as work:
        ended = signals.run(verb, work, number, 60, when=lambda pid: len(children_of(pid)) >= (verb != "guard") + 1)
    assert (ended.code, ended.left) == (-number, [])
    assert "Traceback" not in ended.said


def test_a_signal_before_anything_is_imported() -> None:
    """SIGINT is asked for as soon as the command's first module is there: before, it was a KeyboardInterrupt."""
    code = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"  # a shell's & ignores it
        "from vramcast.cli import main; sys.argv[1:] = ['--help'];"
        "assert 'vramcast.cli.commands' not in sys.modules and 'argparse' not in sys.modules;"
        "main.commands = lambda: (os.kill(os.getpid(), signal.SIGINT), signal.pause()); main.entry()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
