"""The account as a picture of letters: as wide as the terminal, the same figures, ASCII where it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.samples import transformer
from vramcast.base.language import spoken
from vramcast.base.units import format_gib
from vramcast.cli.main import main
from vramcast.memory import Prediction, predict
from vramcast.report.text_picture import picture_lines


@pytest.fixture
def prediction() -> Prediction:
    return predict(transformer(layers=12))


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_line_is_wider_than_the_terminal(prediction: Prediction, width: int, language: str) -> None:
    with spoken(language):
        lines = picture_lines(prediction, width)
    assert max(map(cell_len, lines[2:])) <= width
    for part in prediction.account.parts:
        if part.size_bytes:
            assert any(format_gib(part.size_bytes) in line for line in lines)


def test_the_highest_block_stands_below_the_mark(prediction: Prediction) -> None:
    lines = picture_lines(prediction, 80)
    mark = next(i for i, line in enumerate(lines) if line.endswith("▼"))
    assert lines[mark + 1][lines[mark].index("▼")] == "█" and "|forward" in lines[mark + 2]
    assert f"to {format_gib(prediction.account.moment.allocated_bytes)} allocated" in lines[mark + 3]


def test_depth_and_plain(prediction: Prediction) -> None:
    shallow, deep = (picture_lines(prediction, 80, depth=depth, plain=True) for depth in (1, 4))
    assert len(deep) > len(shallow) and "\n".join(deep).isascii()


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "run.trace"
    transformer().save(saved)
    assert main(["show", str(saved), "--picture", "--plain", "--depth", "2"]) == 0
    assert capsys.readouterr().out.isascii()
    assert main(["show", str(saved), "--plain"]) == 2
    assert "--picture" in capsys.readouterr().err
