"""`run` of a program that is started in several processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramcast.cli.main import main

pytest.importorskip("torch")

SCRIPT = """
import os, torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.Linear(1024, 1024 * (rank + 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    loss = model(torch.randn(8, 1024, device="cuda")).sum()
    dist.all_reduce(loss)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["run", "--gpu", "rtx-4090", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_first_and_the_last_rank_are_run(capsys: pytest.CaptureFixture[str], script: str) -> None:
    code, out, _ = run(capsys, "--gpus", "2", "--nodes", "2", "--json", script)
    document = json.loads(out)
    assert code == 0 and [one["rank"] for one in document["ranks"]] == [0, 3]
    first, last = (one["peak_allocated_bytes"] for one in document["ranks"])
    assert last > first, "the last rank's layer is four times as large"
    assert document["peak_allocated_bytes"] == last
    notes = {note["topic"]: note["text"] for note in document["notes"]}
    assert "shown is rank 3" in notes["ranks"] and "the 2 between were not run" in notes["ranks"]
    assert "1 communicator" in notes["NCCL"]


def test_ranks_that_a_launcher_starts(capsys: pytest.CaptureFixture[str], script: str) -> None:
    code, out, _ = run(capsys, "--rank", "1,2", "--json", "torchrun", "--nproc-per-node", "4", script)
    assert code == 0 and [one["rank"] for one in json.loads(out)["ranks"]] == [1, 2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "8", "--rank", "8"], "'8' is not a rank of 8 (0 to 7)"),
        (["--rank", "first"], "'first' is not a rank of 1"),
    ],
)
def test_ranks_that_are_not_there(capsys: pytest.CaptureFixture[str], script: str, words: list[str], said: str) -> None:
    code, _, err = run(capsys, *words, script)
    assert code == 2 and said in err


def test_a_launcher_and_gpus_do_not_go_together(capsys: pytest.CaptureFixture[str], script: str) -> None:
    code, _, err = run(capsys, "--gpus", "8", "torchrun", "--nproc-per-node", "4", script)
    assert code == 2 and "leave --gpus and --nodes out" in err


TWO_CARDS = """
import torch
first, second = torch.nn.Linear(512, 512).to("cuda:0"), torch.nn.Linear(512, 4096).to("cuda:1")
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
for _ in range(5):
    second(first(torch.randn(8, 512, device="cuda:0")).to("cuda:1")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("options", [["--gpus", "2"], ["--gpus", "2", "--one-process"]])
def test_a_script_without_ranks_uses_both_cards(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str]
) -> None:
    path = tmp_path / "two_cards.py"
    path.write_text(TWO_CARDS)
    code, out, _ = run(capsys, *options, "--json", str(path))
    document = json.loads(out)
    assert code == 0 and "ranks" not in document
    first, second = document["cards"]
    assert (first["card"], second["card"], document["card"]) == (0, 1, 1)
    assert second["peak_allocated_bytes"] == document["peak_allocated_bytes"] > first["peak_allocated_bytes"]
    assert "one process uses 2 cards" in document["notes"][0]["text"]


def test_one_process_needs_a_number_of_cards(capsys: pytest.CaptureFixture[str], script: str) -> None:
    code, _, err = run(capsys, "--one-process", script)
    assert code == 2 and "--one-process goes with --gpus N" in err
