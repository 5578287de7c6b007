"""Measure, on a CUDA GPU, the workspace and the reserve of cuDNN's recurrent networks.

    python -m lab.measuring.sweep_recurrent --out DIR --deadline-seconds 90

Writes DIR/recurrent.csv.gz. Cases are drawn at random, many of them in families that differ in one number only, so
that the terms of a formula can be told apart. Case number i of a seed is always the same case.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
import sys
import time
import warnings
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch
from torch import nn

MAX_ROWS_TIMES_WIDTH = 24_000_000
KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": nn.RNN}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    kind: str
    dtype: str
    steps: int
    batch: int
    inputs: int
    hidden: int
    projection: int
    layers: int
    directions: int
    dropout: float
    bias: bool
    train: bool

    @property
    def cost(self) -> int:
        return self.steps * self.batch * (self.inputs + 8 * self.hidden) * self.layers * self.directions


def draw(rng: random.Random) -> list[Case]:
    """A case, and its neighbours along one axis."""
    hidden = rng.choice([16, 24, 32, 48, 64, 96, 100, 128, 144, 160, 192, 200, 256, 300, 320, 384, 400, 512, 650, 1024])
    case = Case(
        kind=rng.choice(["lstm", "lstm", "lstm", "gru", "gru", "tanh", "relu"]),
        dtype=rng.choice(["f32", "f32", "bf16", "f16"]),
        steps=rng.choice([1, 5, 16, 35, 64, 100, 128, 250, 448, 500, 896]),
        batch=rng.choice([1, 2, 8, 16, 20, 28, 32, 48, 64, 128]),
        inputs=rng.choice([1, 13, 40, 64, 80, 128, 192, 256, 300, 384, 512, hidden, hidden, 4 * hidden]),
        hidden=hidden,
        projection=rng.choice([0, 0, 0, 0, 0, hidden // 2]),
        layers=rng.choice([1, 1, 2, 3, 4]),
        directions=rng.choice([1, 2]),
        dropout=rng.choice([0.0, 0.0, 0.3]),
        bias=rng.random() < 0.9,
        train=rng.random() < 0.9,
    )
    if case.kind != "lstm":
        case = replace(case, projection=0)
    axis = rng.choice(["steps", "batch", "inputs", "hidden", "layers", "none"])
    family = [case]
    if axis in ("steps", "batch", "inputs", "hidden"):
        value = getattr(case, axis)
        family += [replace(case, **{axis: value + step}) for step in (1, 8, value)]
    elif axis == "layers":
        family += [replace(case, layers=case.layers + step) for step in (1, 2)]
    if axis == "hidden":
        family = [replace(member, projection=member.hidden // 2 if case.projection else 0) for member in family]
    return [member for member in family if member.cost <= MAX_ROWS_TIMES_WIDTH]


def sizes(case: Case) -> list[int]:
    """What one forward pass allocates, in order."""
    kind = KINDS[case.kind]
    options = {"nonlinearity": case.kind} if kind is nn.RNN else {}
    if case.projection:
        options["proj_size"] = case.projection
    model = kind(
        case.inputs, case.hidden, case.layers, bias=case.bias, dropout=case.dropout if case.layers > 1 else 0.0,
        bidirectional=case.directions == 2, device="cuda", dtype=DTYPES[case.dtype], **options,
    ).train(case.train)  # fmt: skip
    x = torch.randn(case.steps, case.batch, case.inputs, device="cuda", dtype=DTYPES[case.dtype])
    torch.cuda.memory._record_memory_history("all", context=None, clear_history=True)
    out = model(x)
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(None)
    del out
    return [entry["size"] for entry in trace if entry["action"] == "alloc"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deadline-seconds", type=float, default=90)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.out.mkdir(parents=True, exist_ok=True)
    deadline, done, index = time.monotonic() + options.deadline_seconds, 0, 0
    torch.randn(64, 64, device="cuda").mm(torch.randn(64, 64, device="cuda"))
    with gzip.open(options.out / "recurrent.csv.gz", "wt", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow([field.name for field in fields(Case)] + ["allocations", "error"])
        while time.monotonic() < deadline:
            for case in draw(random.Random(f"{options.seed}/{index}")):
                try:
                    workspace, error = " ".join(map(str, sizes(case))), ""
                except RuntimeError as failure:
                    workspace, error = "", str(failure).splitlines()[0][:80]
                writer.writerow([*asdict(case).values(), workspace, error])
                done += 1
            index += 1
    print(f"{done} cases from {index} draws")
    return 0


if __name__ == "__main__":
    sys.exit(main())
