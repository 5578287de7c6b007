"""Fit the H200's calibration on the recorded operators, and say how well operator costs are predicted.

    PYTHONPATH=src:. python -m lab.fitting.fit_costs                    # evaluate: leave families of networks out in turn
    PYTHONPATH=src python -m lab.fitting.fit_costs --write              # and write src/vramcast/timing/calibrations/h200.json

Operators come from lab/data/records/op_times (steps of whole workloads) and, where it is there, the sweep that
`vramcast calibrate` recorded on the same card. Copies to the device are left out of the sums: the host's memory decides
them, not the card.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from lab import DATA, ROOT
from lab.comparing.times import combined, measured_times, op_records
from vramcast.gpus import find_gpu
from vramcast.timing.costs import generic
from vramcast.timing.costs.calibration import Calibration
from vramcast.timing.costs.card import Card
from vramcast.timing.costs.curves import KindModel
from vramcast.timing.costs.fitting import Sample, fit
from vramcast.timing.costs.part import Part
from vramcast.timing.costs.samples import parts_of_row, samples_from_rows, turned_by

RECORDS = DATA / "records" / "op_times"
PACKAGED = ROOT / "src" / "vramcast" / "timing" / "calibrations" / "h200.json"
FOLDS = 6
FAR = 3
# Networks of one family share layers: they are left out together.
FAMILIES = {
    "bert": "bert roberta deberta", "gpt2": "gpt2 opt bloom", "llama": "llama qwen", "t5": "t5 bart marian", "unet": "unet vae",
    "resnet": "resnet resnext regnet", "mobilenet": "mobilenet mnasnet efficientnet lraspp", "vit": "vit deit",
    "flux": "flux sd3 dit cogvideo", "dlrm": "dlrm", "levit": "levit", "convnext": "convnext",
}  # fmt: skip

Row = dict[str, Any]
Predict = Callable[[Part], float]


def workloads() -> dict[str, list[Row]]:
    times = measured_times()
    by_workload = {}
    for data in op_records():
        rows = data["rows"]
        together = sum(rows[number]["total_ns"] / rows[number]["count"] for number in data["step"]) * 1e-9
        if together > 1.05 * combined(times[data["name"]]).step_seconds:
            for row in rows:
                row["doubtful"] = True
        by_workload[data["name"]] = rows
    return by_workload


def trusted(rows: list[Row], card: Card) -> list[Row]:
    """The rows without those that took far longer than their ideal in a recording that ran longer than the timed steps:
    there cuDNN chose other kernels than in training."""
    kept = []
    for row in rows:
        if row.get("doubtful"):
            ideal = sum(part.base for part in parts_of_row(row, card))
            if row["total_ns"] / row["count"] * 1e-9 > FAR * ideal + 1e-4:
                continue
        kept.append(row)
    return kept


def sweep() -> dict[str, Any]:
    """All sweeps as one. What the host took is not among it: the package's host has a file of its own (fit_host.py)."""
    swept = [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(RECORDS.glob("*sweep*.json.gz"))]
    if not swept:
        return {"rows": [], "environment": {}}
    return {"rows": [row for record in swept for row in record["rows"]], "environment": swept[-1]["environment"]}


def family(name: str) -> str:
    bare = re.sub(r"^d\d-\d+-", "", name)
    return next((group for group, words in FAMILIES.items() if any(word in bare for word in words.split())), bare)


class Evaluation:
    """Sums of predicted and measured time by workload and by kind."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.errors: dict[str, float] = {}
        self.kinds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        self._parts: dict[tuple[str, str, tuple[bool, bool]], list[Part]] = {}

    def parts(self, row: Row) -> list[Part]:
        key = (row["op"], row["args"], turned_by(row["kernels"]))
        if key not in self._parts:
            self._parts[key] = parts_of_row(row, self.card)
        return self._parts[key]

    def add(self, name: str, rows: Iterable[Row], predict: Predict) -> None:
        predicted = measured = 0.0
        for row in rows:
            parts = self.parts(row)
            if any(part.kind == "copy-to-device" for part in parts):
                continue
            times = [max(predict(part), self.card.least_seconds(part.flops, part.unit, part.bytes)) for part in parts]
            guess, took = sum(times) * row["count"], row["total_ns"] * 1e-9
            predicted, measured = predicted + guess, measured + took
            if parts:
                kind = max(zip(times, parts, strict=True), key=lambda pair: pair[0])[1].kind
                sums = self.kinds[kind]
                sums[0], sums[1], sums[2] = sums[0] + guess, sums[1] + took, sums[2] + abs(guess - took)
        self.errors[name] = predicted / measured - 1

    def line(self) -> str:
        sizes = sorted(abs(error) for error in self.errors.values())
        within = sum(size <= 0.15 for size in sizes) / len(sizes)
        signed = sorted(self.errors.values())
        return (
            f"median {sizes[len(sizes) // 2]:.1%}, 90 % within {sizes[int(0.9 * len(sizes))]:.1%}, largest {sizes[-1]:.1%}, "
            f"{within:.0%} of {len(sizes)} within 15 %, median bias {signed[len(signed) // 2]:+.1%}"
        )

    def table(self, most: int) -> str:
        total = sum(sums[1] for sums in self.kinds.values())
        lines = ["kind                             share    bias  error"]
        for kind, (guess, took, missed) in sorted(self.kinds.items(), key=lambda item: -item[1][1])[:most]:
            if took:
                lines.append(f"{kind:32s} {took / total:5.1%} {guess / took - 1:+7.1%} {missed / took:6.1%}")
        return "\n".join(lines)


def by_models(models: dict[str, KindModel], card: Card) -> Predict:
    def predict(part: Part) -> float:
        model = models.get(part.kind)
        return model.seconds(part) if model is not None else generic.seconds(part, card.spec)

    return predict


def evaluate(
    recorded: dict[str, list[Row]],
    samples: dict[str, list[Sample]],
    extra: list[Sample],
    card: Card,
    args: argparse.Namespace,
) -> None:
    left_out, alone = Evaluation(card), Evaluation(card)
    groups = sorted({family(name) for name in recorded})
    for fold in range(FOLDS):
        test = [name for name in recorded if groups.index(family(name)) % FOLDS == fold]
        models = fit([*extra, *(sample for name in recorded if name not in test for sample in samples[name])])
        for name in test:
            left_out.add(name, recorded[name], by_models(models, card))
    for name, rows in recorded.items():
        alone.add(name, rows, by_models({}, card))
    print(f"families left out:      {left_out.line()}")
    if extra:
        only_swept, models = Evaluation(card), fit(extra)
        for name, rows in recorded.items():
            only_swept.add(name, rows, by_models(models, card))
        print(f"sweep alone:            {only_swept.line()}")
    print(f"specification alone:    {alone.line()}")
    print(left_out.table(args.kinds))
    for name, error in sorted(left_out.errors.items(), key=lambda item: -abs(item[1]))[: args.worst]:
        print(f"{name:44s} {error:+.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the package's calibration of the H200")
    parser.add_argument("--only-write", action="store_true", help="write it without evaluating first")
    parser.add_argument("--kinds", type=int, default=45, help="lines of the table by kind")
    parser.add_argument("--worst", type=int, default=15, help="workloads listed")
    args = parser.parse_args()
    card = Card(find_gpu("h200"))
    recorded, swept = workloads(), sweep()
    extra = samples_from_rows(swept["rows"], card)
    samples = {name: samples_from_rows(trusted(rows, card), card) for name, rows in recorded.items()}

    if not args.only_write:
        evaluate(recorded, samples, extra, card, args)
    if args.write or args.only_write:
        models = fit([*extra, *(sample for some in samples.values() for sample in some)])
        environment = swept["environment"] or {"gpu": "NVIDIA H200", "torch": "2.11.0+cu130"}
        versions = {
            key: str(environment[key])
            for key in ("gpu", "driver", "torch", "cuda", "cudnn", "python")
            if key in environment
        }
        source = f"measured on {versions['gpu']} with torch {versions['torch']}: steps of {len(recorded)} workloads"
        source += f" and a sweep of {len(swept['rows'])} operators" if extra else ""
        Calibration(gpu="h200", source=source, date="2026-11-15", environment=versions, kinds=models).save(PACKAGED)
        print(f"wrote {PACKAGED.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
