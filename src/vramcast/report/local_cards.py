"""The cards in this machine: total, used, free, and which process uses how much."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vramcast.base.units import GIB, format_size
from vramcast.gpus.survey import GpuProcess, LocalGpu, Survey
from vramcast.report.page import Grid, Line, Page

_HIDDEN = "hidden: another container's or user's process, or one that has just ended"


def local_page(survey: Survey) -> Page:
    page: list[Line | Grid] = []
    if survey.cards:
        page.append(_cards(survey))
    else:
        page.append(Line(f"no NVIDIA GPU here: {survey.why_none}"))
    page += [
        Line(f"card {problem.index} (as nvidia-smi counts) does not answer: {problem.text}", "bad")
        for problem in survey.problems
    ]
    users = [
        (f"{card.index}", *process_cells(process)[:3], process.kind, process_cells(process)[3])
        for card in survey.cards
        for process in card.processes
    ]
    if users:
        page.append(Grid(("device", "process", "user", "name", "for", "uses"), tuple(users), text_columns=5))
    return page + _remarks(survey)


def process_cells(process: GpuProcess) -> tuple[str, str, str, str]:
    """Number, user, name, memory."""
    used = "not said" if process.used_bytes is None else format_size(process.used_bytes)
    return f"{process.pid}", process.user or "hidden", process.name or "hidden", used


def local_document(survey: Survey) -> dict[str, Any]:
    return {
        "format": "vramcast-local-gpus",
        "version": 1,
        "driver": survey.driver,
        "gpus": [asdict(card) for card in survey.cards],
        "problems": [asdict(problem) for problem in survey.problems],
        "why_none": survey.why_none or None,
    }


def _cards(survey: Survey) -> Grid:
    rows = []
    for card in survey.cards:
        sizes = (card.total_bytes, card.used_bytes, card.free_bytes)
        rows.append((
            f"{card.index}",
            _name(card),
            *(f"{size / GIB:.1f}" for size in sizes),
            "–" if card.busy_percent is None else f"{card.busy_percent} %",
            "–" if card.temperature_celsius is None else f"{card.temperature_celsius} °C",
        ))  # fmt: skip
    return Grid(("device", "card", "total GiB", "used", "free", "busy", "heat"), tuple(rows), text_columns=2)


def _name(card: LocalGpu) -> str:
    if card.mig is None:
        return card.name
    return f"{card.name} (instance {card.mig.gpu_instance}/{card.mig.compute_instance} of card {card.mig.card})"


def _remarks(survey: Survey) -> list[Line | Grid]:
    """What is not there, and why."""
    cards = survey.cards
    processes = [process for card in cards for process in card.processes]
    remarks = []
    silent = [card for card in cards if not card.processes_known]
    if silent:
        devices = ", ".join(f"{card.index}" for card in silent)
        remarks.append(f"processes of device {devices}: the driver does not list them")
    if any(process.user is None for process in processes):
        remarks.append(_HIDDEN)
    if any(process.used_bytes is None for process in processes):
        remarks.append("not said: the driver gives no memory for single processes here (MIG, WDDM, or no permission)")
    if any(card.processes_known and not card.processes and card.used_bytes > GIB for card in cards):
        remarks.append("memory is used and no process is listed: those of other containers are not shown")
    if any(card.busy_percent is None or card.temperature_celsius is None for card in cards):
        remarks.append("–: this card does not say")
    if any(card.mig is not None for card in cards):
        remarks.append(
            "CUDA uses one MIG instance at a time: name it by its UUID in CUDA_VISIBLE_DEVICES (--json has it)"
        )
    return [Line(remark, "aside") for remark in remarks]
