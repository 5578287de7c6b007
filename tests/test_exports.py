"""`--export`: what other programs read says what the prediction says."""

from __future__ import annotations

import csv
import io
import pickle
import re
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.samples import random_trace, transformer
from vramcast.base.errors import UsageError
from vramcast.cli.main import main
from vramcast.memory import Prediction, predict
from vramcast.memory.replay import replay
from vramcast.report.exports import export
from vramcast.report.html_document import scripts
from vramcast.report.svg import COLOURS
from vramcast.trace.schema import KINDS


@pytest.fixture
def prediction() -> Prediction:
    return predict(transformer(layers=6))


@pytest.mark.parametrize("seed", range(4))
def test_a_snapshot_is_what_torch_reads(seed: int) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    found = predict(random_trace(seed))
    assert found.trace is not None
    snapshot = pickle.loads(export(found, Path("run.pickle")))
    run = replay(found.trace, found.allocator_conf)
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == run.reserved_bytes[-1]
    assert sum(segment["allocated_size"] for segment in snapshot["segments"]) == run.allocated_bytes[-1]
    held: dict[int, int] = {}
    highest = 0
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in held
            held[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            assert held.pop(entry["addr"]) == entry["size"]
        highest = max(highest, sum(held.values()))
    assert highest == max(run.requested_bytes)
    assert "total_reserved" in viz.segsum(snapshot)
    assert viz.trace(snapshot) and viz.trace_plot(snapshot) and viz.segment_plot(snapshot)


def test_csv_holds_the_peak(prediction: Prediction) -> None:
    rows = list(csv.DictReader(io.StringIO(export(prediction, Path("step.csv")).decode())))
    peak = next(row for row in rows if int(row["event"]) == prediction.account.moment.event)
    assert {kind: int(peak[f"{kind} bytes"]) for kind in KINDS} == {
        kind: prediction.account.part(kind) for kind in KINDS
    }
    assert int(peak["on the card bytes"]) == prediction.device_bytes


def test_markdown_for_a_pull_request(prediction: Prediction) -> None:
    text = export(prediction, Path("comment.md")).decode()
    assert text.startswith("### ✅ Fits an RTX 4090: needs 2.9")
    assert "| **on the card** | **2.8" in text and "<details>" in text
    assert all(line.count("|") in (3, 4) for line in text.splitlines() if line.startswith("|"))


def test_svg_is_a_picture(prediction: Prediction) -> None:
    root = ElementTree.fromstring(export(prediction, Path("step.svg")))
    colours = [path.get("fill") for path in root.iter("{http://www.w3.org/2000/svg}path") if path.get("fill")]
    assert COLOURS["weights"] in colours and COLOURS["saved activations"] in colours
    assert "Fits an RTX 4090" in "".join(root.itertext())


def test_the_colours_are_those_of_the_report() -> None:
    script = scripts(["common.js"])
    declared = re.search(r"const COLOURS = \{(.*?)\};", script, re.S)
    assert declared is not None
    found = dict(re.findall(r'"?([\w/ ]+?)"?: "(#\w{6})"', declared[1]))
    assert {name.strip(): colour for name, colour in found.items()} == COLOURS
    assert [name.strip() for name in found] == list(COLOURS)


def test_the_verb_writes_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, file = tmp_path / "run.trace", tmp_path / "step.csv"
    transformer().save(saved)
    assert main(["show", str(saved), "--export", str(file)]) == 0
    assert file.read_text(encoding="utf-8").startswith("event,step,phase")
    assert main(["show", str(saved), "--export", str(file)]) == 2
    assert main(["show", str(saved), "--export", str(file), "--force"]) == 0
    assert main(["show", str(saved), "--export", str(tmp_path / "step.gif")]) == 2
    assert ".pickle, .csv, .md, .svg" in capsys.readouterr().err
    with pytest.raises(UsageError):
        export(predict(transformer()), Path("x"))


def test_a_png_is_drawn_from_the_svg() -> None:
    prediction = predict(transformer())
    try:
        import resvg_py  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(UsageError, match=r"vramcast\[png\]"):
            export(prediction, Path("chart.png"))
        return
    made = export(prediction, Path("chart.png"))
    assert made.startswith(b"\x89PNG") and struct.unpack(">II", made[16:24]) == (2000, 920)


def test_the_picture_names_its_phases(prediction: Prediction) -> None:
    picture = export(prediction, Path("run.svg")).decode()
    assert ">forward</text>" in picture and ">backward</text>" in picture and "limit 23.52 GiB" in picture
