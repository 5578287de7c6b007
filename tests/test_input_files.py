"""Whatever is named as an input: a message and exit code 2, without waiting, without memory for what it expands to."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import os
import socket
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.samples import transformer
from vramcast.base.input_files import open_input, parse_json, read_bytes, read_text, read_unpacked
from vramcast.base.plain_text import printable
from vramcast.cli.main import main
from vramcast.errors import UsageError
from vramcast.report.console import emit
from vramcast.trace import StepTrace
from vramcast.trace.schema import TraceError

LLAMA = str(Path(__file__).parent / "jobs" / "configs" / "llama-tiny")
LOG = "step {}: loss 2.0 step_time 0.5s\n"
# Each verb that reads a file that is named to it; X is the file.
READERS = {
    "predict": ["predict", "X"],
    "with": ["predict", LLAMA, "--with", "X"],
    "model": ["predict", "--model", "X", "--", "--bf16", "--per_device_train_batch_size", "2"],
    "calibration": ["predict", LLAMA, "--gpu", "rtx-4090", "--calibration", "X"],
    "check": ["check", "X"],
    "compare": ["compare", "X", "X"],
    "show": ["show", "X"],
    "diagnose": ["diagnose", "X"],
    "watch": ["watch", "--replay", "X"],
    "init": ["init", "X", "--output", "out.yaml"],
}


def _pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe.yaml")
    return "pipe.yaml"


def _socket(folder: Path) -> str:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind("socket.json")
    return "socket.json"


def _loop(folder: Path) -> str:
    (folder / "loop.toml").symlink_to("loop.toml")
    return "loop.toml"


def _empty_folder(folder: Path) -> str:
    (folder / "folder.py").mkdir()
    return "folder.py"


def _no_text(folder: Path) -> str:
    (folder / "x.yaml").write_bytes(b"\xff\xfe\x00\x01" * 50)
    return "x.yaml"


def _zeros(folder: Path) -> str:
    with open(folder / "zeros.json", "wb") as file:
        file.truncate(2**40)  # a terabyte that takes no space
    return "zeros.json"


@functools.cache
def _packed_zeros() -> bytes:
    packer = zlib.compressobj(6, wbits=31)
    return b"".join(packer.compress(bytes(2**20)) for _ in range(300)) + packer.flush()


def _bomb(folder: Path) -> str:
    (folder / "bomb.json").write_bytes(_packed_zeros())
    return "bomb.json"


ODD: dict[str, Callable[[Path], str]] = {
    "pipe": _pipe, "socket": _socket, "loop": _loop, "folder": _empty_folder, "no text": _no_text, "zeros": _zeros,
    "bomb": _bomb, "device": lambda _: "/dev/zero", "null": lambda _: "/dev/null", "long": lambda _: "x" * 300,
    "very long": lambda _: "x/" * 5000 + "y.json", "NUL": lambda _: "a\0b.yaml", "nothing": lambda _: "none.json",
    "empty": lambda _: "", "surrogate": lambda _: "\udcff.yaml",
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("odd", ODD)
def test_no_input_blocks_or_grows(
    odd: str, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = ODD[odd](tmp_path)
    before = sorted(tmp_path.iterdir())
    assert main([name if word == "X" else word for word in READERS[reader]]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("vramcast: ")
    assert "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_said_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for make, said in (
        (_pipe, "is a pipe, not a file"), (_socket, "is a socket"), (_loop, "Too many levels"),
        (_empty_folder, "is a folder"), (_zeros, "is too large: more than"), (lambda _: "/dev/zero", "is a device"),
        (lambda _: "x" * 300, "File name too long"), (lambda _: "a\0b", "null byte"),
        (lambda _: "none", "no such file"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=said):
            read_bytes(make(tmp_path), 1000)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        read_text(path, 100)


def test_files_are_read_to_their_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a" * 100)
    assert read_bytes(path, 100) == b"a" * 100
    with pytest.raises(UsageError, match="too large"):
        read_bytes(path, 99)
    with open_input(path) as file:
        assert file.read() == b"a" * 100
    with pytest.raises(UsageError, match="too large"):
        read_bytes("/proc/self/smaps", 10)  # its size is said to be 0


def test_unpacking_ends_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"a" * 5000) + gzip.compress(b"b" * 5000))
    assert read_unpacked(path, 10_000) == b"a" * 5000 + b"b" * 5000
    with pytest.raises(UsageError, match="unpacks to more than"):
        read_unpacked(path, 9_999)
    for damaged in (path.read_bytes()[:-9], path.read_bytes()[:30], b"\x1f\x8bnothing", path.read_bytes() + b"more"):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"damaged|cut short"):
            read_unpacked(path, 10_000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("1" * 5000, "too many digits"),
        ("{", "not JSON"),
        (b"\xff", "not JSON|UTF-8"),
        (b"[" + b"{}," * 8_000_000 + b"1]", "more values than can be read"),
    ],
)
def test_json_that_expands(text: str | bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_json(text, "x")


def test_a_trace_that_is_a_bomb(tmp_path: Path) -> None:
    """A few kilobytes that unpack to lists which would take gigabytes."""
    path = tmp_path / "x.trace"
    path.write_bytes(gzip.compress(b'{"format": "vramcast-trace", "ops": [' + b"[]," * 40_000_000 + b"1]}", 1))
    assert path.stat().st_size < 2_000_000
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="more values than can be read"):
            StepTrace.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**29
    finally:
        tracemalloc.stop()


def _changed(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    path = tmp_path / "x.trace"
    transformer(layers=2, steps=2).save(path)
    document = json.loads(gzip.decompress(path.read_bytes()))
    change(document)
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(context_bytes=-(10**12)), "context_bytes"),
        (lambda d: d.update(capacity_bytes=-1), "capacity_bytes"),
        (lambda d: d.update(capacity_bytes=2**70), "capacity_bytes"),
        (lambda d: d.update(context_bytes="400"), "context_bytes"),
        (lambda d: d.update(context_bytes=True), "context_bytes"),
        (lambda d: d["requested_bytes"].__setitem__(0, -5), "negative size"),
        (lambda d: d["requested_bytes"].__setitem__(0, 2**55), "larger than any card"),
        (lambda d: d["requested_bytes"].__setitem__(0, 2**70), "damaged"),
        (lambda d: d["requested_bytes"].__setitem__(0, 1.5), "damaged"),
        (lambda d: d["op"].__setitem__(0, 99), "points outside"),
        (lambda d: d["kind"].__setitem__(0, -1), "points outside"),
        (lambda d: d["stream"].__setitem__(0, -3), "negative stream"),
        (lambda d: d["event_arg"].__setitem__(0, 5), "unknown or made already"),
        (lambda d: d["event_kind"].__setitem__(0, 1), "not alive"),
        (lambda d: d["event_arg"].__setitem__(d["event_kind"].index(3), 99), "table of labels"),
        (lambda d: d.update(notes=[{"topic": "a", "text": "b", "count": -1}]), "note"),
        (lambda d: d.update(notes=[{"topic": "a", "text": "b", "where": 3}]), "note"),
        (lambda d: d.update(host={"peak_bytes": -1, "pinned_bytes": 0, "paged_bytes": 0, "parts": {}}), "computer's"),
        (lambda d: d.update(torch_version="next"), "not a version of torch"),
        (lambda d: d["calls"].update(ops=["optimizer"], arguments=["-3 SGD"]), "number of parameters"),
        (lambda d: d["gpu"].update(total_memory_bytes=float("nan")), "number above zero"),
        (lambda d: d["gpu"].update(compute_capability=[9]), "compute_capability"),
        (lambda d: d["gpu"].update(context_bytes=2**80), "number above zero"),
    ],
)
def test_a_trace_that_no_run_can_have_made(
    change: Callable[[dict[str, Any]], object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(_changed(tmp_path, change))]) == 2
    assert said in capsys.readouterr().err


def test_escape_codes_are_shown_not_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("a\x1b[2Jb\x07\u202ec\nd\te\x9b\udcff") == "a\\x1b[2Jb\\x07\\u202ec\nd\te\\x9b\\udcff"
    path = tmp_path / "vramcast.yaml"
    path.write_text('components: {model: {factory: "a\\e[2J\\a"}}\n')
    assert main(["predict", str(path)]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "[2J" in err
    odd_names = {"source": "\x1b]0;title", "modules": ["\x1b[31ma", "b", "c", "d"]}
    trace = _changed(tmp_path, lambda document: document.update(odd_names))
    assert main(["show", str(trace)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b]0;title" in out


def test_a_terminal_gets_our_colours_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    emit(lambda console: console.print("[bold]ok[/bold] \x1b[2J"), screen, width=60)
    assert "\x1b[2J" not in screen.getvalue()
    assert "\\x1b" in screen.getvalue()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["predict", LLAMA, "--steps", "1000000000"], "at most 1,000 steps"),
        (["run", "--steps", "9" * 5000, "x.py"], "a number of 5,000 digits is too large"),
        (["predict", LLAMA, "--batch", "9" * 5000], "a number of 5,000 digits is too large"),
        (["predict", LLAMA, "--batch", "²"], "whole number above zero"),
    ],
)
def test_numbers_that_are_too_large(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("size", ["9" * 400 + "GiB", "1e999", "99999999TiB", "9" * 5000])
def test_sizes_that_are_too_large(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", LLAMA, "--gpu", "rtx-4090", "--limit", size]) == 2
    assert "size" in capsys.readouterr().err
