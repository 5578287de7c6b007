"""Operator times that others published for cards the project does not have, against the specification alone.

    git clone https://github.com/sitar-lab/NeuSight
    PYTHONPATH=src python -m lab.checking.check_published_ops NeuSight/scripts/asplos/data/dataset

Single operators in FP32, torch 2.1, timed by NeuSight's authors (MIT licence). Their times hold the launch by the host,
so short ones are left out. `transferred` is what the H200's curves give on the other card.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median

from vramcast.gpus import find_gpu
from vramcast.timing.costs import Calibration, CostModel
from vramcast.timing.costs.calibration import find_calibration

CARDS = {
    "NVIDIA A100-PCIE-40GB": "a100-40gb", "NVIDIA A100 80GB PCIe": "a100-80gb-pcie", "Tesla V100-PCIE-32GB": "v100-32gb",
    "Tesla T4": "t4", "NVIDIA L4": "l4", "NVIDIA H100 80GB HBM3": "h100-sxm",
}  # fmt: skip
GROUPS = {"linear": "products", "bmm": "products", "conv": "convolutions", "ln": "rows", "softmax": "rows"}
SHORTEST_MS = 0.4
MOST = 300


def signature(row: dict[str, str]) -> tuple[str, str] | None:
    name = row["OPName"]
    size = {key: int(float(row[key])) for key in ("B", "M", "N", "K", "H") if row.get(key)}
    if name == "linear":
        inner, outer = size["K"], size["N"]
        return (
            "aten.addmm.default",
            f"f32({outer}), f32({size['B'] * size['M']},{inner}), f32({inner},{outer}){{1,{inner}}}",
        )
    if name == "bmm":
        return "aten.bmm.default", f"f32({size['B']},{size['M']},{size['K']}), f32({size['B']},{size['K']},{size['N']})"
    if name == "conv":
        places = {
            key: int(float(row[key]))
            for key in ("Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride", "Padding")
        }
        c_in, c_out, window, image, stride, padding = places.values()
        shapes = f"f32({size['B']},{c_in},{image},{image}), f32({c_out},{c_in},{window},{window}), None"
        return (
            "aten.convolution.default",
            f"{shapes}, [{stride}, {stride}], [{padding}, {padding}], [1, 1], False, [0, 0], 1",
        )
    if "H" not in size:
        return None
    x = f"f32({size['B']},{size['H']})"
    if name == "ln":
        return "aten.native_layer_norm.default", f"{x}, [{size['H']}], f32({size['H']}), f32({size['H']}), 1e-05"
    if name == "softmax":
        return "aten._softmax.default", f"{x}, -1, False"
    if name in ("add", "mul", "div"):
        return f"aten.{name}.Tensor", f"{x}, {x}"
    if name in ("addu", "mulu", "divu"):
        return f"aten.{name[:-1]}.Tensor", f"{x}, 2"
    return (f"aten.{name}.default", x) if name in ("gelu", "tanh", "relu") else None


def published(folder: Path) -> Iterator[dict[str, str]]:
    for path in [*sorted(folder.glob("train/collect/*/p2.1.0/*.csv")), *sorted(folder.glob("test/*.csv"))]:
        with path.open(newline="") as file:
            yield from (row for row in csv.DictReader(file) if row.get("Device") in CARDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    rows: dict[str, dict[str, list[tuple[str, str, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in published(parser.parse_args().folder):
        call = signature(row)
        if call and float(row["Latency"]) >= SHORTEST_MS:
            rows[row["Device"]][row["OPName"]].append((*call, float(row["Latency"]) * 1e-3))
    curves = find_calibration("h200")
    assert curves is not None
    for device, by_op in rows.items():
        spec = find_gpu(CARDS[device])
        moved = Calibration(gpu=spec.id, source="transferred", kinds=curves.kinds)
        alone, transferred = CostModel(spec), CostModel(spec, moved)
        errors: dict[tuple[str, str], list[float]] = defaultdict(list)
        for op, calls in sorted(by_op.items()):
            Random(op).shuffle(calls)
            group = GROUPS.get(op, "elementwise")
            for name, arguments, took in calls[:MOST]:
                errors[group, "alone"].append(alone.cost(name, arguments).device_seconds / took - 1)
                errors[group, "transferred"].append(transferred.cost(name, arguments).device_seconds / took - 1)
        for (group, mode), some in sorted(errors.items()):
            sizes = sorted(map(abs, some))
            print(
                f"{device:22s} {group:14s} {len(some):5d} {mode:12s} median {median(sizes):6.1%}, bias {median(some):+7.1%}, "
                f"90 % within {sizes[int(0.9 * len(sizes))]:.0%}"
            )


if __name__ == "__main__":
    main()
