"""The published rows: where they lie, what each is, and which of them are drawn."""

from __future__ import annotations

import csv
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import ROOT

DRAW_SEED = 20250
"""Fixes which rows are drawn; changing it changes the sample, never the recipes."""

TIMM, MLP, CNN, TRANSFORMER, XMEM = "timm_models", "mlp", "cnn", "transformer", "xmem"
FILES = {
    TRANSFORMER: "gpumemnet_transformer.csv",
    MLP: "gpumemnet_mlp.csv",
    XMEM: "xmem_rtx.csv",
    CNN: "gpumemnet_cnn.csv",
    TIMM: "gpumemnet_timm_a100.csv",
}
DRAWN = {TRANSFORMER: None, MLP: 120, XMEM: None, CNN: 90, TIMM: 160}
"""Rows drawn of each file; None: all of them."""
XMEM_CARDS = {"A100-SXM4-40GB": "a100-40gb", "RTX 3060": "rtx-3060", "RTX 4060": "rtx-4060"}


@dataclass(frozen=True)
class Row:
    """One published run."""

    source: str
    number: int
    gpu: str
    group: str
    """Rows of a group share one fitted constant (context and kernels, or what the method left of them)."""
    measured_mib: float
    fields: dict[str, str] = field(hash=False)

    @property
    def label(self) -> str:
        return f"{self.source} row {self.number}"

    def integer(self, name: str) -> int:
        return int(self.fields[name])

    def notes(self) -> dict[str, str]:
        pairs = (part.partition("=") for part in self.fields.get("notes", "").split(";"))
        return {key: value for key, _, value in pairs if key}


def folder() -> Path | None:
    """Where the rows lie, or None when they are not here."""
    named = os.environ.get("VRAMCAST_EXTERNAL")
    path = Path(named) if named else ROOT.parent / "shared" / "external"
    return path if all((path / name).is_file() for name in FILES.values()) else None


def read(path: Path) -> list[Row]:
    rows = []
    for source, name in FILES.items():
        with (path / name).open(newline="") as handle:
            for number, fields in enumerate(csv.DictReader(handle), start=1):
                rows.append(_row(source, number, fields))
    return rows


def _row(source: str, number: int, fields: dict[str, Any]) -> Row:
    if source == XMEM:
        gpu = XMEM_CARDS[fields["gpu"]]
        # Two sets of runs differ by a constant of their own; the Colab runs are a third.
        group = f"{gpu} set {xmem_set(fields['source_file'])}"
        return Row(source, number, gpu, group, float(fields["measured_peak_mib"]), fields)
    return Row(source, number, "a100-40gb", source, float(fields["measured_mib"]), fields)


def xmem_set(source_file: str) -> str:
    parts = source_file.split("/")
    return next((part for part in parts if part in ("001", "002")), "colab")


def draw(rows: list[Row], seed: int = DRAW_SEED) -> list[Row]:
    """The sample: every row of the small files, a stratified draw of the others."""
    chosen: list[Row] = []
    for source, count in DRAWN.items():
        mine = [row for row in rows if row.source == source]
        chosen += mine if count is None else stratified(mine, count, random.Random(f"{seed} {source}"))
    return chosen


def stratified(rows: list[Row], count: int, generator: random.Random) -> list[Row]:
    """The same number from each of ten classes of measured size; no timm model twice."""
    ordered = sorted(rows, key=lambda row: (row.measured_mib, row.number))
    classes = 10
    picked: list[Row] = []
    seen: set[str] = set()
    for index in range(classes):
        part = ordered[index * len(ordered) // classes : (index + 1) * len(ordered) // classes]
        generator.shuffle(part)
        want = (index + 1) * count // classes - index * count // classes
        for row in part:
            name = row.fields.get("model", "")
            if want and (not name or name not in seen):
                seen.add(name)
                picked.append(row)
                want -= 1
    return picked
