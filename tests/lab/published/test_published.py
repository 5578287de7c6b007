"""The draw of published runs, what was recorded of it, and a few rows worked out again."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from lab.published import checkouts, draw, pool, predict, score
from lab.published.page import PAGE, text

MEMORY = {row["row"]: row for row in predict.read("drawn_memory.csv")}
SPEED = {row["row"]: row for row in predict.read("drawn_speed.csv")}
MIRRORS = all(
    checkouts.mirror(name).exists()
    for name in ("NVIDIA/Megatron-LM", "NVIDIA/TransformerEngine")
    if "VRAMCAST_ZOO_MIRROR" in os.environ
)


def test_enough_rows_are_drawn() -> None:
    assert len(MEMORY) == draw.MEMORY_ROWS >= 100
    assert len(SPEED) == draw.SPEED_ROWS >= 60


@pytest.mark.skipif(not pool.rows_file().is_file(), reason="the published rows are not in the repository")
def test_the_draw_is_what_its_seed_gives() -> None:
    """Of the rows that `excluded.csv` does not name."""
    rows = pool.read_rows()
    for what, drawn, count in (("memory", MEMORY, draw.MEMORY_ROWS), ("speed", SPEED, draw.SPEED_ROWS)):
        left_out = {
            number for entry in predict.read("excluded.csv") if entry["of"] == what for number in _numbers(entry)
        }
        eligible = [row for row in rows if row.number not in left_out]
        again = random.Random(draw.SEED).sample(eligible, count)
        assert {str(row.number) for row in again} == set(drawn)


def _numbers(entry: dict[str, str]) -> list[int]:
    found: list[int] = []
    for run in entry["numbers"].split():
        first, _, last = run.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def test_ranges() -> None:
    assert draw.ranges([3, 7, 8, 9, 12]) == "3 7-9 12"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == text()


def test_bubble_of_a_pipeline() -> None:
    """Two stages, four microbatches: a quarter of the passes is waited for."""
    rank = {"step_seconds": 5.0, "phases": {"forward": 1.0, "backward": 3.0, "optimizer": 1.0}}
    row = {"pp": "2", "notes": "micro_batches=4", "micro_batch": "1"}
    assert predict._with_bubble(row, rank) == 6.0
    assert predict._with_bubble({**row, "notes": "micro_batches=4 Interleaved1F1B"}, rank) == 5.5


def test_tokens_of_a_card_become_seconds_of_a_step() -> None:
    """Two samples of 8,192 tokens on a group of 8 tensor-parallel cards, 1,024 tokens a second each: 2 s."""
    row = {"step_s": "", "tp": "8", "pp": "1", "cp": "", "micro_batch": "2", "seq": "", "tokens_per_s_per_gpu": "1024"}
    assert score.step_seconds(row) == 2.0


@pytest.mark.skipif("VRAMCAST_ZOO_MIRROR" not in os.environ or not MIRRORS, reason="needs mirrors of the repositories")
@pytest.mark.parametrize("number", ["7", "573"])
def test_recorded_rows_come_out_again(number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 3 70B on tensor-parallel B200s (SimuMax), and a golden value of Megatron-LM: to the byte."""
    monkeypatch.setenv("VRAMCAST_PUBLISHED_WORK", str(tmp_path))
    recorded = next(entry for entry in predict.read("results_memory.csv") if entry["row"] == number)
    found = predict.predict(MEMORY[number], sys.executable)
    assert not found.get("failure")
    assert (found["allocated"], found["reserved"]) == (int(recorded["allocated"]), int(recorded["reserved"]))
