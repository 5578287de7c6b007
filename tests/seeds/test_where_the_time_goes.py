"""The fifth document: a slow run, from its log. One test an id of S4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import tiny
from tests.seeds.asking import ask

LOG = """\
step 950/8880 | ... | 0.5 samples/s | data_time=0.1ms
前向传播总耗时    : 1805.28ms (50.0%)
VRT处理          : 1799.99ms (49.9%)
Total           : 3610.53ms
| **前向传播** | 1805 ms | 50% |
| - VRT Stage8 | 965 ms | 27% |
| - VRT Stage2 | 269 ms | 7% |
| - VRT Stage7 | 137 ms | 4% |
| - VRT Stage3 | 95 ms | 3% |
| - 其他Stages | ~334 ms | 9% |
| **Spike模块** | ~5 ms | 0.1% |
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("logs") / "train.log"
    path.write_text(LOG)
    return ask("diagnose", str(path), "--batch", "1", "--world_size", "3")


def test_s4_a_the_step_from_throughput_and_world_size(found: Any) -> None:
    assert found["step_seconds"] == pytest.approx(6.0)
    assert found["setup"]["samples_per_step"] == 3


def test_s4_b_the_step_in_parts_and_nothing_twice(found: Any) -> None:
    parts = {part["phase"]: part for part in found["parts"] if part["phase"]}
    assert sum(part["seconds"] for part in found["parts"]) == pytest.approx(6.0)
    forward = parts["forward"]
    assert forward["seconds"] == pytest.approx(1.80528)
    (vrt,) = [child for child in forward["children"] if child["name"] == "VRT处理"]
    assert sum(child["seconds"] for child in vrt["children"]) <= 1.01 * vrt["seconds"]
    assert {"VRT Stage8", "VRT Stage2", "VRT Stage7", "VRT Stage3"} <= {child["name"] for child in vrt["children"]}
    assert found["missing"] == ["backward", "gradient sync", "optimizer"]


def test_s4_c_the_bottleneck_and_what_will_not_help(found: Any) -> None:
    assert found["bottleneck_kind"] == "computation"
    (loader,) = [one for one in found["will_not_help"] if "workers" in one["change"]]
    assert "0.1 ms of 6.00 s" in loader["why"]


def test_s4_d_what_if_alone_and_together(tmp_path: Path) -> None:
    job = {
        **tiny.JOB, "name": "small", "sizes": {"batch": 16384}, "checkpointing": "all",
        "dataset": {"size": 409_600, "epochs": 2},
    }  # fmt: skip
    path = tmp_path / "vramcast.yaml"
    path.write_text(json.dumps(job))
    document = ask("whatif", str(path), "--allow-code", "--gpu", "h200")
    changes = [tuple(one["changes"]) for one in document["outcomes"]]
    assert ("no checkpointing",) in changes and ("batch 32,768",) in changes
    assert any(len(one) > 1 for one in changes), "together"
    fitting = [one for one in document["outcomes"] if one["fits"]]
    rates = [one["time"]["throughput"]["samples_per_second"] for one in fitting]
    assert rates == sorted(rates, reverse=True)
    assert fitting[0]["time"]["throughput"]["epoch_seconds"] * 2 == pytest.approx(
        fitting[0]["time"]["throughput"]["total_seconds"]
    )
    assert document["best"]["kind"] == "diff" and document["best"]["text"].startswith("---")
