"""Memory snapshots of PyTorch: read as data, piece by piece, and shown by line of code."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from lab.browser.large_snapshot import write
from tests.samples import transformer
from vramcast.base.errors import UsageError
from vramcast.cli.main import main
from vramcast.features.snapshot.pickled import read_pickle
from vramcast.features.snapshot.snapshot import read_snapshot
from vramcast.memory import predict
from vramcast.memory.torch_snapshot import torch_snapshot


def entry(action: str, address: int, size: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": frames}


FORWARD = [
    {"name": "linear", "filename": "/venv/site-packages/torch/nn/functional.py", "line": 125},
    {"name": "forward", "filename": "/home/me/net.py", "line": 42},
    {"name": "main", "filename": "/home/me/train.py", "line": 7},
]


def saved(folder: Path, document: Any, protocol: int = 4) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(document, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_what_is_alive_at_the_peak_by_line(tmp_path: Path, protocol: int) -> None:
    entries = [
        entry("segment_alloc", 0, 4096, []),
        entry("alloc", 0, 1000, FORWARD),
        entry("alloc", 1024, 500, FORWARD),
        entry("free_requested", 0, 1000, FORWARD),
        entry("free_completed", 0, 1000, FORWARD),
        entry("free_completed", 9999, 100, []),
        entry("oom", 0, 10, []),
    ]
    blocks = [
        {"address": 1024, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": FORWARD},
        {"address": 1536, "size": 3584, "state": "inactive"},
    ]
    segment = {"device": 0, "address": 1024, "total_size": 8192, "stream": 0, "segment_type": "large", "blocks": blocks}
    found = read_snapshot(saved(tmp_path, {"segments": [segment], "device_traces": [entries]}, protocol))
    assert found.peak_active_bytes == 1600 and found.before_bytes == 100
    assert [(line.line, line.size_bytes, line.blocks) for line in found.lines] == [
        ("net.py:42 forward", 1500, 2),
        ("before the recording", 100, 1),
    ]
    assert found.peak_reserved_bytes == 8192 and found.refused == 1
    top = max(found.course.rows, key=lambda row: row.size_bytes)
    assert (top.op, top.module) == ("linear", "train·py:7 main.net·py:42 forward")


def test_what_we_export_can_be_read_back(tmp_path: Path) -> None:
    prediction = predict(transformer())
    document = torch_snapshot(prediction)
    assert document is not None
    found = read_snapshot(saved(tmp_path, document))
    active = highest = 0
    for one in document["device_traces"][0]:
        active += {"alloc": 1, "free_completed": -1}.get(one["action"], 0) * one["size"]
        highest = max(highest, active)
    assert found.peak_active_bytes == highest
    assert sum(line.size_bytes for line in found.lines) == highest
    assert found.reserved_at_peak_bytes <= found.peak_reserved_bytes == prediction.peak_reserved_bytes


def test_a_generated_one_and_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = io.BytesIO()
    entries, highest = write(file, 300_000)
    path = tmp_path / "large.pickle"
    path.write_bytes(file.getvalue())
    plain = pickle.loads(file.getvalue())
    assert len(plain["device_traces"][0]) == entries
    html = tmp_path / "out.html"
    assert main(["show", str(path), "--json", "--html", str(html)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["peak_active_bytes"] == highest and document["entries"] == entries
    assert f'<data value="{highest}" data-key="peak_active_bytes">' in html.read_text(encoding="utf-8")
    assert main(["show", str(path)]) == 0
    assert "by line" in capsys.readouterr().out


def test_entries_are_not_kept() -> None:
    seen = []
    document = {"device_traces": [[entry("alloc", i, 1, FORWARD) for i in range(2500)], []], "segments": []}
    made = read_pickle(
        io.BytesIO(pickle.dumps(document, 4)), "x", lambda number, some: seen.append((number, len(some)))
    )
    assert sum(count for _, count in seen) == 2500 and {number for number, _ in seen} == {0}
    assert made["device_traces"] == [[], []]


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("code of the file has run",))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_of_a_file_is_run(tmp_path: Path, protocol: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, {"segments": [Harmful()]}, max(2, protocol))
    with pytest.raises(UsageError, match=r"GLOBAL|REDUCE"):
        read_snapshot(path)
    assert "has run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "document", [{}, [], {"segments": [], "device_traces": []}, {"segments": 1, "device_traces": 2}]
)
def test_other_pickles_are_named(tmp_path: Path, document: Any) -> None:
    with pytest.raises(UsageError, match=r"snapshot"):
        read_snapshot(saved(tmp_path, document))


def test_one_that_ends_early(tmp_path: Path) -> None:
    whole = pickle.dumps({"device_traces": [[entry("alloc", 1, 2, FORWARD)]], "segments": []}, 4)
    path = tmp_path / "cut.pickle"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError):
            read_snapshot(path)


def test_options_that_make_no_sense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, {"device_traces": [[entry("alloc", 1, 2, FORWARD)]], "segments": []})
    assert main(["show", str(path), "--gpu", "t4"]) == 2
    assert "what was measured" in capsys.readouterr().err
    assert main(["show", str(path), "--device", "3"]) == 2
    assert "nothing of card 3" in capsys.readouterr().err
