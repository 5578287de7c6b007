"""Logs: what was written is read back, nothing is overwritten, a broken one is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.features.watch.samples import samples
from vramcast.errors import UsageError
from vramcast.features.watch.log import LogFile, read_log
from vramcast.features.watch.sample import Sample

PROBLEM = Sample(time=1_760_000_100.0, seconds=100.0, cards=(), problems=("card 1 (as nvidia-smi counts): lost, alas",))


@pytest.mark.parametrize("name", ["run.csv", "run.jsonl"])
def test_what_was_written_is_read_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    log = LogFile(path)
    written = [*samples([1, 2.5, 3]), PROBLEM]
    for sample in written:
        log.add(sample, 123456)
    log.close()
    found = read_log(path)
    assert found.predicted_bytes == 123456
    assert [sample.seconds for sample in found.samples] == [0, 1, 2, 100]
    assert found.samples[3].problems == PROBLEM.problems
    for before, after in zip(written[:3], found.samples, strict=False):
        for name in ("index", "name", "total_bytes", "used_bytes", "free_bytes", "watched_bytes", "basis"):
            assert getattr(before.cards[0], name) == getattr(after.cards[0], name)
        assert after.time == before.time and after.cards[0].temperature_celsius == 64


@pytest.mark.parametrize("name", ["run.csv", "run.jsonl"])
def test_lines_are_there_at_once_and_a_cut_off_one_does_no_harm(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    log = LogFile(path)
    log.add(samples([1])[0], None)
    assert len(read_log(path).samples) == 1  # not closed yet
    log.close()
    with path.open("a") as file:
        file.write('{"time": "2025-1' if name.endswith("jsonl") else "2025-10-09T08:53")
    assert len(read_log(path).samples) == 1


@pytest.mark.parametrize("name", ["run.csv", "run.jsonl"])
def test_an_existing_log_is_added_to_and_that_is_said(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    first = LogFile(path)
    assert first.said == ""
    for sample in samples([1, 2]):
        first.add(sample, None)
    first.close()
    second = LogFile(path)
    assert "is there already, with 2 samples; new ones are added at its end" in second.said
    for sample in samples([5]):
        second.add(sample, None)
    second.close()
    found = read_log(path)
    assert len(found.samples) == 3 and len(found.last_run()) == 1


def test_what_is_not_a_log_is_left_alone(tmp_path: Path) -> None:
    for name, text in (("a.csv", "loss,step\n1,2\n"), ("a.jsonl", '{"loss": 1}\n'), ("b.jsonl", "nonsense\n")):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(UsageError, match=f"{name}.*(not a log|not a line) of `vramcast watch`"):
            LogFile(path)
        assert path.read_text() == text


def test_bad_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must end in \.csv or \.jsonl"):
        LogFile(tmp_path / "log.txt")
    with pytest.raises(UsageError, match="there is no folder"):
        LogFile(tmp_path / "no" / "log.csv")
    with pytest.raises(UsageError, match="no such file"):
        read_log(tmp_path / "none.csv")


def test_a_row_that_makes_no_sense(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    log = LogFile(path)
    log.add(samples([1])[0], None)
    log.close()
    row = json.loads(path.read_text())
    for change in ({"total_bytes": 0}, {"used_bytes": "many"}, {"basis": "guess"}, {"time": 5}, {"seconds": None}):
        path.write_text(json.dumps(row | change) + "\n")
        with pytest.raises(UsageError, match="row 1 is not one of `vramcast watch`"):
            read_log(path)
