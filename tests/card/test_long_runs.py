"""Runs of many steps: one epoch, the longest batches, and memory after each step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.card.scripts import notes, runner
from vramcast.cli.main import main
from vramcast.errors import CannotPredict
from vramcast.report.curve import blocks
from vramcast.scripts.runner import run_script

HERE = Path(__file__).parent
MEASURED: dict[str, Any] = json.loads((HERE / "measured_curves.json").read_text())

SCRIPT = """
import torch
from torch.utils.data import DataLoader
torch.manual_seed(3)
lengths = [5, 900, 30, 41, 7, 333, 1000, 64, 2, 512]
class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return len(lengths)
    def __getitem__(self, i):
        return {"ids": torch.zeros(lengths[i], 256), "number": torch.tensor(i)}
model = torch.nn.Linear(256, 256, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train = DataLoader(Texts(), batch_size=1, shuffle=SHUFFLE)
held_out = DataLoader(torch.zeros(1, 8000, 256))
for epoch in range(EPOCHS):
    for batch in LOADER:
        ids = batch.pop("ids")
        print("batch", batch["number"].item(), ids.shape[1])
        model(ids.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for ids in held_out:
            model(ids.cuda())
"""
AHEAD = """
def one_ahead(loader):
    batches = iter(loader)
    last = next(batches)
    for batch in batches:
        yield last
        last = batch
    yield last
"""
WEIGHTS = 4 * 256 * 256


def script(loader: str = "train", *, shuffle: bool = False, epochs: int = 4) -> str:
    text = SCRIPT.replace("LOADER", loader).replace("SHUFFLE", str(shuffle)).replace("EPOCHS", str(epochs))
    return AHEAD + text


def given(output: str) -> list[tuple[int, int]]:
    """(number, length) of each batch that the training loop got."""
    rows = [line.split() for line in output.splitlines() if line.startswith("batch ")]
    return [(int(number), int(length)) for _, number, length in rows]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MEASURED["curves"])
def test_memory_after_each_step_is_as_measured(kind: str) -> None:
    pytest.importorskip("transformers")
    if torch.__version__.partition("+")[0] != "2.11.0":
        pytest.skip("recorded with torch 2.11.0")
    measured = MEASURED["curves"][kind]
    steps = len(measured["reserved_bytes"])
    found = run_script(os.fspath(HERE / "varying_lengths.py"), [kind], gpu="H200", steps=steps).curve
    assert [level.step for level in found] == list(range(1, steps + 1))
    assert [level.reserved_bytes for level in found] == measured["reserved_bytes"]
    assert [level.allocated_bytes for level in found] == measured["allocated_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit", ["400", *(pytest.param(limit, marks=pytest.mark.exhaustive) for limit in ("520", "640"))]
)
def test_memory_runs_out_in_the_step_in_which_it_did(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    if torch.__version__.partition("+")[0] != "2.11.0":
        pytest.skip("recorded with torch 2.11.0")
    run_script(os.fspath(HERE / "rising_lengths.py"), [limit], gpu="H200", steps=100)
    measured = MEASURED["out_of_memory"][limit]
    said = f"out of memory in step {measured['step']} reserved {measured['reserved_bytes']}"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("loader", ["train", "one_ahead(train)", "DataLoader(Texts(), batch_size=1)"])
def test_an_epoch_is_run_with_the_evaluation_after_it(
    loader: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = runner(tmp_path)(script(loader), until="epoch")
    assert len(given(capsys.readouterr().out)) in (11, 13)  # the epoch, and what shows that another has begun
    assert [level.step for level in found.curve][:10] == list(range(1, 11))
    # The evaluation's batch and its result are more than any batch of training needs.
    assert found.peak_allocated_bytes >= WEIGHTS + 2 * 8000 * 256 * 4


def test_a_script_of_one_epoch_ends_by_itself(tmp_path: Path) -> None:
    found = runner(tmp_path)(script(epochs=1), until="epoch")
    assert found.steps == 10 and notes(found, "not run") == []


def test_a_script_without_a_loader_has_no_epoch(tmp_path: Path) -> None:
    loop = """
        import torch
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            model(torch.zeros(8, 8, device="cuda")).sum().backward()
            optimizer.step()
    """
    for until in ("epoch", "longest"):
        with pytest.raises(CannotPredict, match=rf"--{until}: after 3 optimizer steps .* --steps N or --whole"):
            runner(tmp_path)(loop, until=until)


@pytest.mark.parametrize("loader", ["train", "one_ahead(train)"])
def test_the_longest_batches_are_run_in_rising_order(
    loader: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = runner(tmp_path)(script(loader), until="longest")
    lengths = [length for _, length in given(capsys.readouterr().out)]
    own = 2 if loader == "train" else 3
    assert lengths[:own] == [5, 900, 30][:own]
    rising = [2, 5, 7, 30, 41, 64, 333, 512, 900, 1000]
    assert lengths[own : own + len(rising)] == rising
    assert lengths[own + len(rising) :][:3] == [2, 1000, 1000]
    note, orders = notes(found, "longest batches")
    assert orders.startswith("43 orders of these steps were replayed")
    assert note.startswith("the largest of 10 batches is number 7 (ids float32[1, 1000, 256], number int64[1]), the")
    assert "smallest number 9 (ids float32[1, 2, 256]" in note
    whole = runner(tmp_path)(script(loader, epochs=1), steps=None)
    training = max(level.peak_allocated_bytes for level in whole.curve)
    assert max(level.peak_allocated_bytes for level in found.curve) == training


def test_a_shuffled_loader_is_gone_through_in_the_order_of_its_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runner(tmp_path)
    run(script(shuffle=True, epochs=1), steps=None)
    order = [length for _, length in given(capsys.readouterr().out)]
    note, _ = notes(run(script(shuffle=True), until="longest"), "longest batches")
    assert f"number {order.index(1000) + 1} (ids" in note
    assert [length for _, length in given(capsys.readouterr().out)][:2] == order[:2]


def test_the_batch_that_memory_runs_out_with_is_named(tmp_path: Path) -> None:
    # Two weights (one is the gradient), the workspace of cuBLAS, and a batch with its result: 512 rows do not fit.
    limit = 32 << 20
    text = script().replace("torch.zeros(lengths[i], 256)", "torch.zeros(16 * lengths[i], 256)").replace("900", "9")
    found = runner(tmp_path)(text, until="longest", limit_bytes=limit)
    assert not found.fits and found.at_least
    (note,) = [note for note in found.notes if note.topic == "out of memory"]
    assert note.where is not None and note.where.endswith("train.py:27")
    assert "it runs out with batch 6 of 10 (ids float32[1, 5328, 256]" in note.text
    assert note.text.endswith("the first batch of that size or more is number 6")


def test_the_step_at_which_memory_runs_out_is_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would be broken over lines
    Path("train.py").write_text(
        "import torch\n"
        "w = torch.nn.Parameter(torch.zeros(8, device='cuda'))\n"
        "optimizer = torch.optim.SGD([w], lr=0.1)\n"
        "for step in range(1, 20):\n"
        "    x = torch.empty(step << 20, device='cuda')\n"
        "    del x\n"
        "    w.grad = torch.zeros_like(w)\n"
        "    optimizer.step()\n"
    )
    assert main(["run", "--gpu", "rtx-4090", "--steps", "50", "--limit", "64MiB", "train.py"]) == 1
    text = capsys.readouterr().out
    # 4 MiB a step: 2 MiB for small tensors are taken, so 15 times 4 MiB fit after what is cached is given back.
    assert "train.py:5: the script ends here in step 16" in " ".join(text.split())
    assert main(["run", "--gpu", "rtx-4090", "--steps", "12", "--json", "train.py"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [level["step"] for level in document["curve"]] == list(range(1, 13))
    peaks = [level["peak_allocated_bytes"] for level in document["curve"]]
    assert all(peak - (step << 22) in (1024, 512) for step, peak in enumerate(peaks, 1))


def test_blocks_go_from_the_lowest_level_to_the_highest() -> None:
    assert blocks([100, 200, 300]) == "▁▄█"
    assert blocks([5, 5]) == "██"
    assert blocks([*range(40)])[0] == "▁" and blocks([*range(40)])[-1] == "█" and len(blocks([*range(40)])) == 20
