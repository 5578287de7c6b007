"""The cards in this machine: total, used, free, and which process uses how much."""

from __future__ import annotations

from collections.abc import Sequence

from vramcast.gpus.state import LocalGpu
from vramcast.report.page import Grid, Line, Page
from vramcast.units import GIB, format_size


def local_page(cards: Sequence[LocalGpu]) -> Page:
    if not cards:
        return [Line("no NVIDIA GPU here")]
    rows = []
    for card in cards:
        sizes = (card.total_bytes, card.used_bytes, card.free_bytes)
        rows.append((f"{card.index}", card.name, *(f"{size / GIB:.1f}" for size in sizes)))
    page: list[Line | Grid] = [Grid(("device", "card", "total GiB", "used", "free"), tuple(rows), text_columns=2)]
    users = [
        (f"{card.index}", f"{process.pid}", process.name, _used(process.used_bytes))
        for card in cards
        for process in card.processes
    ]
    if users:
        page.append(Grid(("device", "process", "name", "uses"), tuple(users), text_columns=3))
    return page


def _used(used_bytes: int | None) -> str:
    return "not said" if used_bytes is None else format_size(used_bytes)
