"""Which published rows state enough to be predicted, and why the others do not.

Every rule is about what the source states. Whether vramcast can run a row is no rule: a drawn row that it cannot run
counts as unanswered.
"""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass
from pathlib import Path

from lab import ROOT
from lab.published.golden_history import Recorded, history

FILE = "multi_gpu_published.csv"
MEGATRON, SIMUMAX, TITAN, AO, TUNE = "Megatron-LM", "SimuMax", "torchtitan", "torchao", "torchtune"
SOURCES = {
    "github.com/NVIDIA/Megatron-LM/": MEGATRON,
    "github.com/MooreThreads/SimuMax/": SIMUMAX,
    "github.com/pytorch/torchtitan/": TITAN,
    "github.com/pytorch/ao/": AO,
    "github.com/pytorch/torchtune/": TUNE,
}
OTHER_SOURCES = {
    "nanotron-ultrascale-playbook": "mode of tensor parallelism, recomputation and versions not stated",
    "Megatron-Bridge": "recomputation, overlap, CUDA graphs and offloading are in recipes of another repository",
    "ms-swift": "lengths of samples vary, versions not stated",
    "llm-foundry": "versions of torch, flash attention and composer not stated",
    "litgpt": "rounded, lengths of samples vary, versions not stated",
    "huggingface/peft": "lengths of samples vary; one card",
    "InternEvo": "card and versions not stated, memory rounded",
    "Automodel": "container stated without the settings of the runs",
    "OpenTau": "lengths of samples and images vary",
    "DeepSpeed": "figures from users' issues without the whole program",
    "axolotl": "lengths of samples vary, versions not stated",
    "fms-fsdp": "versions not stated",
}


@dataclass(frozen=True)
class Row:
    """One published figure: `number` is its place in the file, from 0."""

    number: int
    source: str
    fields: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.fields[name]

    @property
    def path(self) -> str:
        """The file inside the source's repository."""
        found = re.search(r"/blob/[0-9a-f]+/(.*)$", self["source"])
        return found.group(1) if found else ""


def rows_file() -> Path:
    named = os.environ.get("VRAMCAST_EXTERNAL")
    return (Path(named) if named else ROOT.parent / "shared" / "external") / FILE


def read_rows(path: Path | None = None) -> list[Row]:
    with (path or rows_file()).open(encoding="utf-8", newline="") as file:
        return [Row(number, _source(fields["source"]), fields) for number, fields in enumerate(csv.DictReader(file))]


def _source(address: str) -> str:
    return next((name for part, name in SOURCES.items() if part in address), "")


class Pool:
    """The rows of the file, each with the reason why it is left out, or none."""

    def __init__(self, rows: list[Row], megatron: Path) -> None:
        self.rows = rows
        golden = [row.path for row in rows if row.source == MEGATRON]
        self.recorded: dict[str, Recorded] = history(megatron, golden)

    def memory_exclusion(self, row: Row) -> str:
        """Why the row's memory cannot be predicted from what is stated; empty: it can."""
        if not row["peak_memory_gib"]:
            return "no memory stated"
        return self._exclusion(row)

    def speed_exclusion(self, row: Row) -> str:
        if not row["tokens_per_s_per_gpu"] and not row["step_s"]:
            return "no speed stated"
        if row.source == MEGATRON:
            return "tests of some milliseconds a microbatch, in deterministic mode with logging at each step"
        if row.source == TUNE:
            return "one card"
        return self._exclusion(row)

    def _exclusion(self, row: Row) -> str:
        if not row.source:
            return next(
                (why for part, why in OTHER_SOURCES.items() if part in row["source"]),
                "a figure in a discussion or post",
            )
        if "/issues/" in row["source"]:
            return "a figure in an issue, settings not stated"
        return {MEGATRON: self._megatron, AO: _ao, TITAN: _titan, TUNE: _tune, SIMUMAX: _all_stated}[row.source](row)

    def _megatron(self, row: Row) -> str:
        recorded = self.recorded.get(row.path)
        if recorded is None or not recorded.container:
            return "the commit that recorded the memory names no container, so versions are unknown"
        if "grpo" in row["model"]:
            return "reinforcement learning: memory follows the lengths of generated text"
        if row["model"].startswith(("mimo/", "multimodal")):
            return "images and packed texts of unknown lengths"
        return ""


def _all_stated(row: Row) -> str:
    return ""


def _titan(row: Row) -> str:
    if row.path.endswith("nvfp4.md"):
        return "the card is not named"
    return ""


def _ao(row: Row) -> str:
    if row["gpu"].startswith("MI300"):
        return "a card of AMD"
    if "not stated" in row["notes"]:
        return "batch and exact model not stated"
    if row.path.endswith("workflows/training.md"):
        return ""
    if row.path.endswith("optim/README.md"):
        if "torchtune" in row["notes"]:
            return "lengths of samples vary"
        if row["optimizer"].startswith(("bnb", "lpmm")):
            return "version of the optimizer's library not stated"
        return ""
    return "versions not stated"


def _tune(row: Row) -> str:
    if row["memory_kind"] != "max_active":
        return "which peak (active, allocated, reserved) and which versions not stated"
    if "unpacked" in row["notes"]:
        return "lengths of samples vary"
    return ""
