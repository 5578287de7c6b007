"""Predictions of the workloads that keep a part in the computer's memory beside their measurements.

    python -m lab.comparing.offload_accuracy

writes docs/lab/accuracy-offload.md. Memory of the computer is compared by what the allocators have given out: PyTorch's
pinned blocks, and malloc's bytes in use at their highest in the steps, less those of the same kind of run without
offload (CUDA's own and the libraries').
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from lab import DATA, ROOT
from lab.comparing.errors import relative_error, signed_percent
from lab.comparing.predictions import STEPS
from lab.measuring.import_measurements import FOLDER, load
from lab.measuring.measure_corpus import load_corpus
from lab.pages.markdown import paragraph, table

PAGE = ROOT / "docs" / "lab" / "accuracy-offload.md"
MEASURED = FOLDER / "offload"
_GIB = 2**30
_WITHOUT = {"sd": "off-none-sd-encoders", "pipeline": "off-none-pipeline", "gpt2": "off-none-gpt2",
            "llama": "off-none-llama-original"}  # fmt: skip
"""The run without offload that each is compared with, by the kind of model in its name."""


@dataclass(frozen=True)
class Row:
    name: str
    allocated_error: float
    reserved_error: float
    reserved_bytes: int
    pinned_bytes: int
    predicted_pinned_bytes: int
    pageable_bytes: int
    predicted_pageable_bytes: int

    @property
    def host_error(self) -> float:
        """Error of all memory of the computer; 0 where nothing is predicted there."""
        measured = self.pinned_bytes + self.pageable_bytes
        predicted = self.predicted_pinned_bytes + self.predicted_pageable_bytes
        return relative_error(predicted, measured) if predicted else 0.0


def records() -> dict[str, dict[str, Any]]:
    (path,) = sorted(MEASURED.glob("*.jsonl"))
    return load(path)[1]


def compared(record: dict[str, Any], known: dict[str, dict[str, Any]]) -> Row:
    """Runs on a virtual card in this process."""
    import torch

    from vramcast.base.factories import load_factory
    from vramcast.card.device.context import virtual_gpu

    with virtual_gpu("h200") as gpu:
        torch.manual_seed(record["seed"])
        step = load_factory(record["factory"])(**record["args"])
        for _ in range(STEPS):
            step()
    prediction = gpu.prediction()
    host = prediction.host.to_dict() if prediction.host is not None else {"peak_bytes": 0, "pinned_bytes": 0}
    return Row(
        name=record["name"],
        allocated_error=relative_error(prediction.peak_allocated_bytes, record["peak_allocated_bytes"]),
        reserved_error=relative_error(prediction.peak_reserved_bytes, record["peak_reserved_bytes"]),
        reserved_bytes=record["peak_reserved_bytes"],
        pinned_bytes=record["host"]["pinned"].get("allocated_bytes.peak", 0),
        predicted_pinned_bytes=host["pinned_bytes"],
        pageable_bytes=max(0, _in_use(record) - _in_use(known[without(record)])),
        predicted_pageable_bytes=host["peak_bytes"] - host["pinned_bytes"],
    )


def without(record: dict[str, Any]) -> str:
    """The name of the run without offload."""
    return _WITHOUT[record["name"].split("-")[1]]


def _in_use(record: dict[str, Any]) -> int:
    return int(record["host"]["steps"]["malloc_used"] - record["host"]["before"]["malloc_used"])


def page(rows: list[Row]) -> list[str]:
    text = (
        "Workloads that keep a part in the computer's memory, predicted and measured on an H200 (torch 2.11). The "
        "card's figures are the allocator's peaks. Pinned memory is what PyTorch's host allocator holds; pageable "
        "memory is what malloc has given out at most in the steps, less that of the same kind of run without offload: "
        "0.5 GiB for CUDA and its libraries, 1.2 GiB with cuDNN. Resident memory is higher where modules come and go, "
        "by up to 0.5 GiB here: malloc keeps what was freed."
    )
    cells = [
        [
            row.name, f"{row.reserved_bytes / _GIB:.2f}", signed_percent(row.allocated_error),
            signed_percent(row.reserved_error), _pair(row.predicted_pinned_bytes, row.pinned_bytes),
            _pair(row.predicted_pageable_bytes, row.pageable_bytes), signed_percent(row.host_error),
        ]
        for row in rows
    ]  # fmt: skip
    header = ["workload", "reserved, GiB", "allocated", "reserved", "pinned, GiB", "pageable, GiB", "host"]
    return [
        "# How good predictions with offload are", "", *paragraph(text), "",
        "Predicted and measured stand as predicted / measured; made by `python -m lab.comparing.offload_accuracy`.", "",
        *table(header, cells),
    ]  # fmt: skip


def _pair(predicted: int, measured: int) -> str:
    return f"{predicted / _GIB:.3f} / {measured / _GIB:.3f}" if predicted or measured > _GIB // 8 else "–"


def main() -> int:
    known = records()
    missing = {w.name: w.missing for w in load_corpus(DATA / "offload.yaml") if w.missing}
    for name, needs in missing.items():
        print(f"{name} needs {', '.join(needs)}", file=sys.stderr)
    rows = [compared(r, known) for name, r in known.items() if "none" not in r["tags"] and name not in missing]
    PAGE.write_text("\n".join(page(rows)) + "\n", encoding="utf-8")
    for row in rows:
        print(json.dumps(row.__dict__ | {"host_error": row.host_error}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
