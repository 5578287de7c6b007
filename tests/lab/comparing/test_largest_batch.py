"""The experiment of the largest batch: how it looks for the true one, in which order, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vramcast
from lab.comparing.largest_batch import (
    BUDGET_GB,
    GB,
    LIMITS_GB,
    NAMES,
    Pair,
    in_order,
    load_pairs,
    report,
    trial,
    true_largest,
)
from lab.measuring.measure_corpus import load_corpus
from vramcast.card.libraries.cudnn_installed import open_cudnn


def pair(largest: int, advised: int) -> Pair:
    return Pair("one", 8, largest, advised, 0, 0.0)


@pytest.mark.parametrize(
    ("true", "advised", "largest", "most_trials"),
    [(10, 10, 10, 1), (12, 10, 10, 3), (8, 10, 10, 3), (10, 9, 10, 2), (0, 1, 1, 0), (1, 4, 4, 3), (444, 440, 445, 5)],
)
def test_few_trials_find_it(true: int, advised: int, largest: int, most_trials: int) -> None:
    tried: list[int] = []

    def runs(batch: int) -> bool:
        tried.append(batch)
        return batch <= true

    found, refused = true_largest(pair(largest, advised), advised <= true, runs)
    step = max(1, largest // 400)
    assert refused is not None and found <= true < refused <= found + step
    assert len(tried) <= most_trials


def test_without_time_there_is_no_end() -> None:
    assert true_largest(pair(10, 10), True, lambda batch: None) == (10, None)


def test_the_beginning_is_spread_over_workloads_and_limits() -> None:
    pairs = load_pairs()
    assert len({one.name for one in pairs}) >= 20
    assert {one.limit_gb for one in pairs} == set(LIMITS_GB) and max(LIMITS_GB) <= BUDGET_GB
    first = in_order(pairs)[:40]
    assert len({one.name for one in first}) >= 20 and len({one.limit_gb for one in first}) >= 4
    assert sorted(map(repr, in_order(pairs))) == sorted(map(repr, pairs))
    assert all(0.85 * one.largest <= one.advised <= one.largest for one in pairs)


def test_the_workloads_are_of_the_corpus() -> None:
    corpus = {workload.name: workload for workload in load_corpus()}
    assert all("batch" in corpus[name].args for name in NAMES)


def test_the_report_says_what_ran(tmp_path: Path) -> None:
    rows = [
        {"name": "a", "limit_gb": 8, "advised": 98, "largest": 100, "advised_ran": True, "fits": 100, "refused": 101},
        {"name": "b", "limit_gb": 8, "advised": 8, "largest": 8, "advised_ran": False, "fits": 7, "refused": 8},
        {"name": "c", "limit_gb": 8, "advised": 8, "largest": 8, "advised_ran": None, "error": "x"},
        {"name": "d", "limit_gb": 8, "advised": 8, "largest": 9, "advised_ran": True, "fits": 8, "refused": 10},
    ]
    path = tmp_path / "measured.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    text = report(path)
    assert "| b | 8 | 8 | **no** |" in text and "98.0%" in text
    assert "2 pairs of 2 workloads: the advised batch ran 20 steps in 1; it is at least 97 %" in text


@pytest.mark.skipif(open_cudnn() is None, reason="no cuDNN from 9.8 on is installed")
@pytest.mark.parametrize(
    ("name", "batch", "steps_made", "retries", "reserved_bytes"),
    [
        ("vgg16-fp32", 72, 1, 48, 7_881_097_216),
        ("vgg16-fp32", 73, 3, 133, 7_956_594_688),
        ("r3d-18-fp32", 40, 1, 23, 7_925_137_408),
        ("unet2d-fp32", 8, 0, 7, 7_828_668_416),
    ],
)
def test_a_run_under_a_limit_ends_as_on_the_gpu(
    name: str, batch: int, steps_made: int, retries: int, reserved_bytes: int
) -> None:
    """Measured on an H200 at 8 GB: convolutions try one plan after the other until there is room for its workspace."""
    workload = next(one for one in load_corpus() if one.name == name)
    if workload.missing:
        pytest.skip(f"needs {workload.missing}")
    with vramcast.virtual_gpu("h200"):
        found = trial((workload, batch, 8 * GB, 20))
    assert found["outcome"] == "out of memory"
    assert (found["steps_made"], found["retries"]) == (steps_made, retries)
    assert found["reserved_bytes"] == reserved_bytes
