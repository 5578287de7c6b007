"""The drawing as text."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tests.features.watch.samples import card, samples, training_run
from vramcast.base.units import GIB
from vramcast.cli.main import main
from vramcast.features.watch.history import CardHistory, History
from vramcast.features.watch.log import LogFile
from vramcast.features.watch.sample import Sample
from vramcast.report.watch import clock, graph, plain_lines, summary_lines, watch_view

Golden = Callable[[str, str], None]


def drawn(history: History, width: int = 80, last_line: str = "") -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, no_color=True)
    console.print(watch_view(history, width, last_line))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def test_a_training_run(golden: Golden) -> None:
    history = History(predicted_bytes=int(20.9 * GIB), threshold=0.95, subject="python train.py (process 4242)")
    for sample in samples(training_run(), others=1.5):
        history.add(sample)
    text = drawn(history, last_line=" 45%|████      | 45/100")
    golden("watch", text + "\n".join(summary_lines(history)) + "\n")


def test_two_cards_one_of_them_lost(golden: Golden) -> None:
    history = History()
    history.add(Sample(time=0, seconds=0, cards=(card(2, basis="card"), card(1, index=1, basis="growth"))))
    history.add(Sample(time=1, seconds=3661, cards=(card(23, basis="card"),), problems=("card 1: lost",)))
    golden("watch_lost", drawn(history, 60))


def test_every_width_draws_without_breaking() -> None:
    history = History(predicted_bytes=9 * GIB)
    for sample in samples(training_run()):
        history.add(sample)
    for width in (24, 40, 79, 200):
        assert max(map(len, drawn(history, width).splitlines())) <= width


def test_the_graph_is_as_high_as_the_memory() -> None:
    """Eight rows of eight steps: the column of a value has as many of them as its share of the top."""
    one = CardHistory(card(0, total=16))
    for gib in (0, 4, 8, 15.9, 16):
        one.add(card(gib, total=16), 0.0)
    lines = graph(one, History(threshold=1.0), 30)
    columns = ["".join(line[10:15].ljust(5)[i] for line in lines) for i in range(5)]
    heights = [sum(" ▁▂▃▄▅▆▇█".find(sign) for sign in column if sign in "▁▂▃▄▅▆▇█") for column in columns]
    assert heights == [0, 16, 32, 64, 64]


def test_many_values_keep_their_peak() -> None:
    one = CardHistory(card(0))
    for i in range(5000):
        one.add(card(20 if i == 1234 else 1), float(i))
    column = "".join(line[10 + 1234 * 50 // 5000] for line in graph(one, History(), 60)[1:])
    assert column == "▅██████"  # 20 of 24 GiB: 6.67 of 8 rows


def test_plain_lines() -> None:
    (sample,) = samples([2.5], others=1)
    assert list(plain_lines(sample, History(predicted_bytes=3 * GIB))) == [
        "00:00  0: 3.50 GiB of 24.00 GiB used (15%), 97 % busy, 64 °C, watched 2.50 GiB, predicted 3.00 GiB"
    ]
    assert [clock(seconds) for seconds in (0, 59.9, 61, 3661)] == ["00:00", "00:59", "01:01", "1:01:01"]


def test_replay(
    tmp_path: Path, golden: Golden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    log = LogFile(tmp_path / "run.csv")
    for sample in [*samples([1, 2]), *samples(training_run(), others=1.5)]:
        log.add(sample, int(20.9 * GIB))
    log.close()
    assert main(["watch", "--replay", str(tmp_path / "run.csv")]) == 0
    golden("watch_replay", capsys.readouterr().out)
