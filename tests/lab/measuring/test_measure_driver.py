"""The driver's own work: choosing, scheduling, collecting. Children are stand-ins that write a result or die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.measuring import measure_corpus
from lab.measuring.measure_corpus import Archive, Workload, choose, parse, run_all

ROOT = Path(__file__).parents[3]


def _workload(name: str, gib: float = 10, tags: tuple[str, ...] = ()) -> Workload:
    return Workload(name=name, factory="x:y", gib=gib, tags=list(tags))


def test_choosing_by_name_and_tag() -> None:
    corpus = [_workload("gpt2"), _workload("unet", tags=("convolution",)), _workload("resnet", tags=("convolution",))]
    assert [w.name for w in choose(corpus, "convolution|gpt", "")] == ["gpt2", "unet", "resnet"]
    assert [w.name for w in choose(corpus, "convolution", "^unet$")] == ["resnet"]


def test_needs_are_packages_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VRAMCAST_NOWHERE", raising=False)
    workload = Workload(name="a", factory="x:y", gib=1, needs=["json", "no_such_package", "VRAMCAST_NOWHERE"])
    assert workload.missing == ["no_such_package", "VRAMCAST_NOWHERE"]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Fork children that run what the test says, and note which ran beside which."""
    log: dict[str, Any] = {"started": [], "running": set(), "most_gib": 0.0, "script": {}}

    def start(workload: Workload, options: Any, parts: Path, fork: bool) -> int:
        log["started"].append(workload.name)
        pid = os.fork()
        if pid == 0:
            try:
                log["script"].get(workload.name, _succeed)(workload, parts)
            finally:
                os._exit(0)
        return pid

    monkeypatch.setattr(measure_corpus, "start_child", start)
    return log


def _succeed(workload: Workload, parts: Path) -> None:
    spans = parts / f"{workload.name}.span"
    begun = time.monotonic()
    time.sleep(0.15)
    spans.write_text(json.dumps([begun, time.monotonic(), workload.gib]))
    result = {"name": workload.name, "peak_allocated_bytes": 1, "peak_reserved_bytes": 2}
    (parts / f"{workload.name}.json").write_text(json.dumps(result))


def _options(tmp_path: Path, *more: str) -> Any:
    return parse(["--out", str(tmp_path), *more])


def test_children_share_the_card_within_the_budget(tmp_path: Path, children: dict[str, Any]) -> None:
    workloads = [_workload("a", 70), _workload("b", 60), _workload("c", 50), _workload("d", 20)]
    results = run_all(workloads, _options(tmp_path, "--jobs", "3"), fork=True)
    assert {r["name"] for r in results} == {"a", "b", "c", "d"}
    assert children["started"][0] == "a", "largest first"
    spans = [json.loads(p.read_text()) for p in (tmp_path / "parts").glob("*.span")]
    for begun, _, _ in spans:
        assert sum(gib for first, last, gib in spans if first <= begun < last) <= 120
    lines = (tmp_path / "memory.jsonl").read_text().splitlines()
    assert {json.loads(line)["name"] for line in lines} == {"a", "b", "c", "d"}


def test_a_child_that_dies_is_reported_with_its_last_words(tmp_path: Path, children: dict[str, Any]) -> None:
    def die(workload: Workload, parts: Path) -> None:
        (parts / f"{workload.name}.log").write_text("some noise\nSegmentation fault in kernel 7")

    children["script"]["bad"] = die
    (result,) = run_all([_workload("bad")], _options(tmp_path), fork=True)
    assert result["error"] == "the process died"
    assert "kernel 7" in result["traceback"]


def test_a_child_that_hangs_is_stopped(tmp_path: Path, children: dict[str, Any]) -> None:
    children["script"]["slow"] = lambda workload, parts: time.sleep(30)
    (result,) = run_all([_workload("slow")], _options(tmp_path, "--child-seconds", "0.2"), fork=True)
    assert "stopped after 0.2 s" in result["error"]


def test_out_of_memory_beside_others_is_tried_again_alone(tmp_path: Path, children: dict[str, Any]) -> None:
    def crowded(workload: Workload, parts: Path) -> None:
        mark = parts / "tried"
        if mark.exists():
            _succeed(workload, parts)
        else:
            mark.write_text("")
            result = {"name": workload.name, "error": "OutOfMemoryError: CUDA out of memory", "traceback": ""}
            (parts / f"{workload.name}.json").write_text(json.dumps(result))

    children["script"]["big"] = crowded
    results = run_all([_workload("big", 90), _workload("small", 5)], _options(tmp_path), fork=True)
    assert children["started"].count("big") == 2
    assert not [r for r in results if "error" in r]


def test_nothing_starts_after_the_deadline(tmp_path: Path, children: dict[str, Any], capsys: Any) -> None:
    assert run_all([_workload("late")], _options(tmp_path, "--deadline-seconds", "-1"), fork=True) == []
    assert "late" in capsys.readouterr().out
    assert children["started"] == []


def test_archives_stay_below_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_corpus, "ARCHIVE_LIMIT_BYTES", 3000)
    archive = Archive(tmp_path, "ops")
    for number in range(5):
        part = tmp_path / f"w{number}.json.gz"
        part.write_bytes(os.urandom(1000))
        archive.add(part)
    archives = sorted(tmp_path.glob("ops-*.zip"))
    assert len(archives) > 1
    assert all(path.stat().st_size <= 3000 for path in archives)
    names = [name for path in archives for name in zipfile.ZipFile(path).namelist()]
    assert names == [f"w{n}.json.gz" for n in range(5)]
    assert not list(tmp_path.glob("w*.json.gz"))


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="a CPU build of torch has no CUDA to keep away from")
def test_preloading_leaves_forks_able_to_use_cuda() -> None:
    program = (
        "from lab.measuring.measure_corpus import *\n"
        "preload([w for w in load_corpus() if not w.missing])\n"
        "import torch\n"
        "assert not torch.cuda.is_initialized()\n"
        "print('safe', forks_are_safe())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert "safe True" in answer.stdout
