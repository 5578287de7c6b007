"""Batch norm and recurrent networks against measurements on an H200 (torch 2.11.0+cu130, cuDNN 9.19)."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

from vramcast.card.libraries.batch_norm import batch_norm_workspace_bytes
from vramcast.card.libraries.recurrent import (
    GRU,
    LSTM,
    RNN_RELU,
    RNN_TANH,
    RecurrentShape,
    dropout_state_bytes,
    reserve_bytes,
    workspace_bytes,
)

HERE = Path(__file__).parent


def _rows(name: str) -> list[dict[str, str]]:
    with (HERE / name).open() as file:
        return list(csv.DictReader(file))


def test_batch_norm_workspace_is_exact() -> None:
    compared = 0
    for row in _rows("batch_norm_h200.csv"):
        shape = tuple(map(int, row["shape"].split("x")))
        if shape[1] <= 3:
            continue  # a kernel of its own, at most 100 KiB
        predicted = batch_norm_workspace_bytes(shape, int(row["item_bytes"]), True, backward=row["backward"] == "1")
        assert predicted == int(row["workspace_bytes"]), row
        compared += 1
    assert compared > 200


def test_contiguous_batch_norm_takes_nothing() -> None:
    assert batch_norm_workspace_bytes((8, 64, 32, 32), 4, False, backward=False) == 0


def _shape(row: dict[str, str]) -> RecurrentShape:
    return RecurrentShape(
        mode={"LSTM": LSTM, "GRU": GRU, "RNN": RNN_TANH}[row["kind"]], steps=int(row["steps"]),
        batch=int(row["batch"]), rows=int(row["rows"]), input_size=int(row["input_size"]), hidden=int(row["hidden"]),
        projection=int(row["projection"]), layers=int(row["layers"]), directions=int(row["directions"]),
        dropout=row["dropout"] == "1", packed=row["packed"] == "1", item_bytes=int(row["item_bytes"]),
    )  # fmt: skip


def test_recurrent_reserve_is_exact() -> None:
    for row in _rows("recurrent_h200.csv"):
        if row["training"] == "1":
            assert abs(reserve_bytes(_shape(row)) - int(row["reserve_bytes"])) <= 32, row


def test_recurrent_workspace_is_close() -> None:
    errors = sorted(
        abs(workspace_bytes(_shape(row)) / int(row["workspace_bytes"]) - 1) for row in _rows("recurrent_h200.csv")
    )
    assert errors[len(errors) // 2] < 0.001
    assert errors[int(len(errors) * 0.9)] < 0.03


def test_recurrent_workspaces_of_a_sweep() -> None:
    """Every twentieth training call of the sweep in lab/data/records; projections and deep one-way networks vary."""
    kinds = {"lstm": LSTM, "gru": GRU, "tanh": RNN_TANH, "relu": RNN_RELU}
    errors = []
    with gzip.open(HERE.parents[2] / "lab/data/records/workspaces/recurrent.csv.gz", "rt") as file:
        cases = [row for row in csv.DictReader(file) if row["train"] == "True" and not row["error"]]
    for row in cases[::20]:
        number = {name: int(row[name]) for name in ("steps", "batch", "hidden", "projection", "layers", "directions")}
        shape = RecurrentShape(
            mode=kinds[row["kind"]], rows=number["steps"] * number["batch"], input_size=int(row["inputs"]),
            dropout=float(row["dropout"]) > 0 and number["layers"] > 1, packed=False,
            item_bytes=4 if row["dtype"] == "f32" else 2, bfloat16=row["dtype"] == "bf16", **number,
        )  # fmt: skip
        *_, workspace, reserve = map(int, row["allocations"].split())
        assert abs(reserve_bytes(shape) - reserve) <= 32, row
        errors.append(abs(workspace_bytes(shape) / workspace - 1))
    errors.sort()
    assert errors[int(len(errors) * 0.85)] < 0.0002
    assert errors[int(len(errors) * 0.97)] < 0.03


def test_a_backward_pass_leaves_the_persistent_kernel_earlier() -> None:
    shape = RecurrentShape(
        mode=RNN_TANH, steps=250, batch=8, rows=2000, input_size=13, hidden=300, projection=0, layers=3, directions=1,
        dropout=True, packed=False, item_bytes=4,
    )  # fmt: skip
    assert abs(workspace_bytes(shape) - 60_962_560) <= 512
    assert abs(workspace_bytes(shape, backward=True) - 35_148_160) / 35_148_160 < 0.08


def test_dropout_state_of_an_h200() -> None:
    assert dropout_state_bytes(132, 2048) == 6_488_064
