"""The HTML report: what it shows is what --json says, to the byte, and it loads nothing."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.samples import random_trace, transformer
from vramcast.base.units import GIB
from vramcast.cli.main import main
from vramcast.features.compare.peaks import peak_tables
from vramcast.memory import Prediction, predict
from vramcast.memory.step_course import step_course
from vramcast.report.documents import prediction_document
from vramcast.report.html_front import Way, front, front_picture
from vramcast.report.html_parts import Bar, bars
from vramcast.report.html_report import prediction_report
from vramcast.trace.schema import KINDS


class _Reader(HTMLParser):
    """The figures with a key, and the data of the scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.figures: dict[str, int] = {}
        self.attributes: list[tuple[str, str]] = []
        self._in_data = False
        self.data = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.attributes += found.items()
        self._in_data = found.get("id") == "data"
        if tag == "data" and "data-key" in found:
            self.figures[found["data-key"]] = int(found["value"])

    def handle_endtag(self, tag: str) -> None:
        self._in_data = False

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data += data


def read(html: str) -> tuple[dict[str, int], dict[str, Any]]:
    reader = _Reader(html)
    return reader.figures, json.loads(reader.data)


def at_peak(course: dict[str, Any]) -> dict[str, int]:
    """The account that the scripts would show, from the embedded rows."""
    rows, peak = course["rows"], course["peak"]
    parts = dict.fromkeys(KINDS, 0)
    for first, end, size, kind in zip(rows["first"], rows["end"], rows["size"], rows["kind"], strict=True):
        if first <= peak < end:
            parts[course["kinds"][kind]] += size
    allocated, reserved = course["points"]["allocated"][peak], course["points"]["reserved"][peak]
    parts["rounding"] = allocated - sum(parts.values())
    parts["fragmentation"] = reserved - allocated
    parts["context and kernels"] = course["context"]
    return parts


@pytest.mark.parametrize("scale", [1, 8], ids=["fits", "does not fit"])
def test_the_report_says_what_json_says(scale: int) -> None:
    prediction = predict(transformer(layers=12, scale=scale))
    document = prediction_document(prediction)
    figures, data = read(prediction_report(prediction).to_html())
    for key, value in figures.items():
        assert value == (document["margin"] if key == "with_margin_bytes" else document).get(key), key
    assert {"device_bytes", "limit_bytes", "headroom_bytes", "peak_reserved_bytes"} <= figures.keys()
    course = data["results"][0]["course"]
    assert at_peak(course) == document["account"]["parts"]
    assert sum(sum(segment[2::2]) for segment in course["segments"]) == document["peak_reserved_bytes"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("most_points", [20, 10_000])
def test_every_point_adds_up(seed: int, most_points: int) -> None:
    prediction = predict(random_trace(seed, events=400))
    course = step_course(prediction, most_points)
    assert course is not None
    for number, point in enumerate(course.points):
        requested = sum(row.size_bytes for row in course.rows if row.first <= number < row.end)
        assert requested <= point.allocated_bytes <= point.reserved_bytes
    assert_account(prediction, step_course(prediction, most_points, most_rows=5))
    assert_account(prediction, course)


def assert_account(prediction: Prediction, course: Any) -> None:
    assert course.points[course.peak].event == prediction.account.moment.event
    for kind, name in enumerate(KINDS):
        held = sum(row.size_bytes for row in course.rows if row.kind == kind and row.first <= course.peak < row.end)
        assert held == prediction.account.part(name)
    assert sum(segment.size_bytes for segment in course.segments) == prediction.peak_reserved_bytes
    free = sum(part.size_bytes for one in course.segments for part in one.parts if part.kind is None)
    assert free == prediction.account.part("fragmentation")


def test_a_cut_course_keeps_the_extremes() -> None:
    prediction = predict(transformer(layers=60))
    whole, cut = step_course(prediction), step_course(prediction, 30)
    assert whole is not None and cut is not None
    assert len(cut.points) < len(whole.points) / 3
    for extreme in (max, min):
        assert extreme(p.allocated_bytes for p in cut.points) == extreme(p.allocated_bytes for p in whole.points)
    assert cut.short_lived > 0


def test_nothing_is_loaded_and_names_are_only_text() -> None:
    trace = transformer()
    hostile = trace.changed(
        source="</script><script>alert(1)</script>", modules=[f"{m}</script>" for m in trace.modules]
    )
    html = prediction_report(predict(hostile)).to_html()
    assert html.count("</script>") == 3
    assert "<script>alert" not in html
    reader = _Reader(html)
    assert not [value for name, value in reader.attributes if name in ("src", "href", "srcset", "action")]
    assert "default-src 'none'" in html
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest", html)


def test_bars_stand_against_the_limit() -> None:
    html = bars([Bar("as it is", 30 * GIB, False), Bar("8-bit <Adam>", 12 * GIB, True, "cheap")], 24 * GIB)
    assert 'value="32212254720"' in html and "8-bit &lt;Adam&gt;" in html and html.count("fill over") == 1


def test_the_verb_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, report = tmp_path / "run.trace", tmp_path / "out.html"
    transformer(layers=12).save(saved)
    assert main(["show", str(saved), "--json", "--html", str(report)]) == 0
    document = json.loads(capsys.readouterr().out)
    figures, data = read(report.read_text(encoding="utf-8"))
    assert figures["device_bytes"] == document["device_bytes"]
    assert at_peak(data["results"][0]["course"]) == document["account"]["parts"]
    assert main(["show", str(saved), "--html", str(report)]) == 0, "a report of ours may be replaced"
    report.write_text("something else", encoding="utf-8")
    assert main(["show", str(saved), "--html", str(report)]) == 2
    assert "exists and is something else" in capsys.readouterr().err


def test_two_results_in_one_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "small.trace", tmp_path / "large.trace"]
    for file, layers in zip(files, (4, 6), strict=True):
        transformer(layers=layers).save(file)
    small, large = (predict(transformer(layers=layers)) for layers in (4, 6))
    report = tmp_path / "both.html"
    assert main(["compare", *map(str, files), "--html", str(report)]) == 0
    html = report.read_text(encoding="utf-8")
    _, data = read(html)
    assert [at_peak(one["course"])["weights"] for one in data["results"]] == [5 * 64 * 2**20, 7 * 64 * 2**20]
    more = large.device_bytes - small.device_bytes
    assert f'<data value="{more}">' in html
    assert "large needs" in html and "more than small" in html


def test_lines_of_a_difference_add_up() -> None:
    predictions = {"a": predict(random_trace(1)), "b": predict(random_trace(2))}
    tables = peak_tables(predictions)
    for number, prediction in enumerate(predictions.values()):
        assert sum(line.values[number] for line in tables.kinds) == prediction.device_bytes
        requested = prediction.account.moment.requested_bytes
        assert sum(line.values[number] for line in tables.modules) == requested
        assert sum(line.values[number] for line in tables.ops) == requested


def test_the_front_is_what_no_other_beats() -> None:
    ways = [
        Way("slow", 4 * GIB, 2.0, True),
        Way("worse", 6 * GIB, 1.5, True),
        Way("fast", 9 * GIB, 5.0, True),
        Way("too large", 30 * GIB, 9.0, False),
    ]
    assert [way.label for way in front(ways)] == ["slow", "fast"]
    picture = front_picture(ways, 24 * GIB)
    assert picture.count("<circle") == 4 and "worse: 6.00 GiB, 1.5 samples/s" in picture
    assert front_picture(ways[:1], 24 * GIB) == ""
    assert "<li>slow: 4.00 GiB, 2 samples/s</li><li>fast" in picture and ">limit 24.00 GiB<" in picture
    assert re.findall(r'text-anchor="end">([\d.]+)<', picture) == ["0", "2", "4", "6", "8", "10"]
    none_fits = front_picture([ways[3], ways[3]], 24 * GIB)
    assert none_fits.count("<circle") == 2 and 'd="M"' not in none_fits and "<li>" not in none_fits


def test_every_row_of_a_job_has_a_cell_for_each_heading(tmp_path: Path) -> None:
    words = "--arch transformer --hidden-dim 64 --num-layers 2 --batch 2 --seq 32 --gpu rtx-4090 --checkpointing all"
    assert main(["predict", *words.split(), "--html", str(tmp_path / "job.html")]) == 0
    tables = re.findall(r"<table>(.*?)</table>", (tmp_path / "job.html").read_text(encoding="utf-8"), re.S)
    assert len(tables) > 4 and any("in one block" in one and ">FFN<" in one for one in tables)
    for one in tables:
        assert {row.count("<td") for row in re.findall(r"<tr>(.*?)</tr>", one)} == {
            0,
            one.count("<th ") + one.count("<th>"),
        }


def test_the_line_of_code_that_allocates(tmp_path: Path) -> None:
    import torch

    from vramcast import virtual_gpu
    from vramcast.trace import StepTrace

    with virtual_gpu("rtx-4090") as gpu:
        layer = torch.nn.Linear(64, 64).cuda()
        kept = layer(torch.ones(8, 64, device="cuda"))  # this line
    prediction = gpu.prediction()
    number = next(
        i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# this line")
    )
    course = step_course(prediction)
    assert course is not None and kept is not None
    assert any(row.line.endswith(f"test_html_report.py:{number}") and row.op == "aten.addmm" for row in course.rows)
    assert prediction.trace is not None
    prediction.trace.save(tmp_path / "run.trace")
    assert StepTrace.load(tmp_path / "run.trace").lines == prediction.trace.lines


def test_ranks_side_by_side() -> None:
    prediction = predict(transformer())
    ranks = [
        {"rank": rank, "fits": True, "peak_allocated_bytes": GIB, "peak_reserved_bytes": (rank + 1) * GIB}
        for rank in (0, 7)
    ]
    html = prediction_report(prediction, ranks=ranks).to_html()
    for rank in ranks:
        assert f'<data value="{rank["peak_reserved_bytes"] + prediction.context_bytes}">' in html
    assert "rank 7" in html
    assert "class=ranks" not in prediction_report(prediction, ranks=ranks[:1]).to_html()
