"""The draw of published runs, what was recorded of it, and a few rows worked out again."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from lab.published import checkouts, draw, golden, pool, predict, score, simumax
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


def test_microbatches_that_are_not_run_take_as_long_as_the_second() -> None:
    """Eight microbatches of which four are run: four more passes, and an eighth of all of them for a second stage."""
    rank = {"step_seconds": 5.0, "pass_seconds": 1.0, "phases": {"forward": 1.0, "backward": 3.0, "optimizer": 1.0}}
    row = {"pp": "1", "notes": "micro_batches=8", "micro_batch": "1", "global_batch": "64"}
    assert predict._with_bubble(row, rank, further_passes=4) == 9.0
    assert predict._with_bubble({**row, "pp": "2"}, rank, further_passes=4) == 10.0
    words = simumax._layout(row, 1, 1, 1)
    assert words[words.index("--global-batch-size") + 1] == "32", "eight data-parallel ranks, four microbatches each"


def test_cards_that_a_layout_needs() -> None:
    """Two tensor-parallel ranks and eight stages; eight groups of experts, each of two ranks."""
    settings: dict[str, object] = {
        "--tensor-model-parallel-size": 2,
        "--pipeline-model-parallel-size": 8,
        "--expert-model-parallel-size": 8,
    }
    assert golden._fewest_cards(settings) == 128
    assert golden._fewest_cards({**settings, "--expert-tensor-parallel-size": 1}) == 64


def test_what_is_printed_as_gb() -> None:
    row = {"peak_memory_gib": "10.737418240", "memory_kind": "max_allocated, printed GB"}
    assert score._published_gib(row) == pytest.approx(10)
    assert score._published_gib({**row, "memory_kind": "max_reserved"}) == pytest.approx(10.73741824)


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
