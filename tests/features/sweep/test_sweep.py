"""A grid of questions: what it asks, and that nothing is lost or asked twice, whatever is killed."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vramcast.base.errors import UsageError
from vramcast.base.processes import children_of
from vramcast.cli.main import main
from vramcast.features.sweep.answer import Answer
from vramcast.features.sweep.grid import Grid, read_grid
from vramcast.features.sweep.journal import Journal, left_over
from vramcast.prediction.predict import predict

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500,
}  # fmt: skip
GRID = """
jobs: [model]
gpus: [h100, rtx-4090]
set:
  sizes.batch: [1, 2, 3]
  sizes.sequence: [32, 64]
  optimizer: [adamw, nonsense]
"""


@pytest.fixture
def grid_file(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    path = tmp_path / "grid.yaml"
    path.write_text(GRID)
    return path


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_combination_once(grid_file: Path) -> None:
    grid = read_grid(grid_file)
    assert len(grid) == 2 * 3 * 2 * 2
    assert len({question.id for question in grid}) == len(grid)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpus: [h100]", "jobs: a list of names is needed"),
        ("jobs: [m]\ngpus: [h100]\nsets: {}", "sets: there is no such key"),
        ("jobs: [m]\ngpus: [h100]\nset: {sizes.batch: []}", "set.sizes.batch: the list is empty"),
        ("jobs: [m]\ngpus: [h100]\nset: {sizes.batch: [1, 1]}", "a value stands there twice"),
        ("jobs: [m]\ngpus: [h100]\nsteps: 0", "steps: a number of at least 1"),
    ],
)
def test_a_wrong_grid_is_told(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=told):
        read_grid(path)


def test_answers_are_those_of_predict(grid_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(grid_file), "--workers", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"] == {"fits": 12, "bad input": 12}
    found = rows(grid_file.with_suffix(".csv"))
    assert len({row["id"] for row in found}) == 24
    row = next(row for row in found if row["verdict"] == "fits" and row["sizes.batch"] == "2" and row["gpu"] == "h100")
    job = {
        "components": {"model": {"transformers": str(grid_file.parent / "model")}},
        "sizes": {"batch": 2, "sequence": int(row["sizes.sequence"])},
    }
    assert predict(job, "h100").peak_reserved_bytes == int(row["peak_reserved_bytes"])
    assert all("there is no optimizer 'nonsense'" in row["message"] for row in found if row["verdict"] == "bad input")
    assert main(["sweep", str(grid_file), "--workers", "1"]) == 0
    assert "0 of 24 questions answered" in capsys.readouterr().out
    assert rows(grid_file.with_suffix(".csv")) == found


def test_a_report_of_all_answers(grid_file: Path, tmp_path: Path) -> None:
    html = tmp_path / "out.html"
    assert main(["sweep", str(grid_file), "--workers", "1", "--html", str(html), "--json"]) == 0
    shown = html.read_text(encoding="utf-8")
    with grid_file.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        answers = list(csv.DictReader(file))
    fits = sum(answer["verdict"] == "fits" for answer in answers)
    assert f"{fits} of {len(answers)} fit" in shown
    for answer in answers:
        if answer["device_bytes"]:
            assert f'<data value="{answer["device_bytes"]}">' in shown


def test_a_line_that_is_cut_off_is_asked_again(tmp_path: Path) -> None:
    grid, path = Grid(("a",), ("h100",), {"sizes.batch": (1, 2)}), tmp_path / "answers.csv"
    first, second = grid
    with Journal(path, grid) as journal:
        for question in (first, second):
            journal.add(question, Answer(id=question.id, verdict="fits", message="one\nline"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with Journal(path, grid) as journal:
        assert left_over(grid, journal.answered) == [second]
        journal.add(second, Answer(id=second.id, verdict="fits", message="one line"))
    assert path.read_bytes() == whole


def test_a_file_of_another_grid_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    path.write_text("id,job\n1,x\n")
    with pytest.raises(UsageError, match="something else"), Journal(path, Grid(("a",), ("h100",))):
        pass
    assert path.read_text() == "id,job\n1,x\n"


def test_two_sweeps_do_not_write_to_one_file(tmp_path: Path) -> None:
    grid, path = Grid(("a",), ("h100",)), tmp_path / "answers.csv"
    with Journal(path, grid), pytest.raises(UsageError, match="another sweep"), Journal(path, grid):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_worker_that_outlives_its_sweep_does_not_hold_the_file(grid_file: Path) -> None:
    grid, path = read_grid(grid_file), grid_file.with_suffix(".csv")
    ready, started = os.pipe()
    with Journal(path, grid):
        worker = os.fork()
        if not worker:
            os.write(started, b".")
            signal.pause()
        os.read(ready, 1)
    try:
        with Journal(path, grid) as journal:
            assert journal.answered == set()
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_killed_again_and_again(grid_file: Path) -> None:
    """What was answered when a process was killed is there afterwards, and nothing is answered twice."""
    out, chance = grid_file.with_suffix(".csv"), random.Random(5)
    command = [sys.executable, "-m", "vramcast", "sweep", str(grid_file), "--workers", "2"]
    seen: set[str] = set()
    for kill in range(2):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for_answers(out, len(seen) + chance.randrange(1, 4), process)
            time.sleep(chance.random() * 0.2)
            if kill == 1:  # first a worker, which the sweep survives
                for child in children_of(process.pid)[:1]:
                    os.kill(child, signal.SIGKILL)
                _wait_for_answers(out, len(seen) + 3, process)
        finally:
            process.kill()
            process.wait()
        text = out.read_text()
        whole = {line.partition(",")[0] for line in text[: text.rfind("\n") + 1].splitlines()[1:]}
        assert seen <= whole
        seen = whole
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0
    ids = [row["id"] for row in rows(out)]
    assert len(ids) == len(set(ids)) == 24
    assert seen <= set(ids)


def _wait_for_answers(out: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        if out.exists() and out.read_bytes().count(b"\n") > count:
            return
        time.sleep(0.02)


@pytest.mark.exhaustive
def test_a_ray_cluster_of_two_nodes_answers_the_same(grid_file: Path) -> None:
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed")
    here, there = grid_file.with_name("here.csv"), grid_file.with_name("there.csv")
    assert main(["sweep", str(grid_file), "--workers", "1", "--out", str(here)]) == 0
    cluster = cluster_utils.Cluster()
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        words = ["sweep", str(grid_file), "--ray", cluster.address, "--out", str(there)]
        subprocess.run([sys.executable, "-m", "vramcast", *words], check=True)
    finally:
        cluster.shutdown()
    found = [{row["id"]: (row["verdict"], row["peak_reserved_bytes"]) for row in rows(path)} for path in (here, there)]
    assert len(found[0]) == 24 and found[0] == found[1]
