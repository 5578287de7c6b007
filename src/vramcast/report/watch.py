"""The cards over time, in a terminal: a graph for each, its peak, the prediction beside it, and who uses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vramcast.base.units import GIB, format_gib
from vramcast.features.watch.history import CardHistory, History
from vramcast.features.watch.sample import BASES, CardSample, Sample
from vramcast.report.local_cards import process_cells
from vramcast.report.wording import signed_percent

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ROWS = 8
_LABEL_WIDTH = 10
_MOST_PROCESSES = 8


def watch_view(history: History, width: int, last_line: str = "") -> Group:
    """All of it; `last_line` is what the command printed last, without an end."""
    parts: list[RenderableType] = [_card_panel(card, history, width) for _, card in sorted(history.cards.items())]
    parts += [Text(f"{problem}", style="bold red") for problem in history.problems]
    foot = f"{history.subject or 'the whole card'}; {clock(history.seconds)}, {history.n_samples} samples"
    parts.append(Text(foot, style="dim"))
    if last_line:
        parts.append(Text(last_line[:width], no_wrap=True))
    return Group(*parts)


def _card_panel(card: CardHistory, history: History, width: int) -> Panel:
    last = card.last
    inner = max(20, width - 4)
    parts: list[RenderableType] = [Text(line, no_wrap=True) for line in graph(card, history, inner)]
    parts.append(Text(_figures(card, history)))
    state = _state(last)
    if state:
        parts.append(Text(state, style="dim"))
    if card.lost:
        parts.append(Text("does not answer now; the figures are the last it gave", style="bold red"))
    parts += _processes(last)
    above = last.used_share > history.threshold
    return Panel(
        Group(*parts),
        title=f"{last.index}: {last.name}",
        title_align="left",
        border_style="red" if above or card.lost else "green",
        width=width,
    )


def graph(card: CardHistory, history: History, width: int) -> list[str]:
    """Block characters, oldest first; lines for the prediction (┄) and the warning (╌) where they are in sight."""
    columns = max(8, width - _LABEL_WIDTH)
    values = _columns(card.values, columns)
    top = _top(card, history)
    marks = {}
    level = int(history.threshold * card.last.total_bytes)
    if level <= top:
        marks[_row(level, top)] = ("╌", "warning")
    if history.predicted_bytes is not None and history.predicted_bytes <= top:
        marks[_row(history.predicted_bytes, top)] = ("┄", "predicted")
    lines = []
    for row in reversed(range(_ROWS)):
        sign, label = marks.get(row, (" ", ""))
        if not label and row in (0, _ROWS - 1):
            label = f"{top / GIB:.1f} GiB" if row else "0"
        cells = "".join(_cell(value, row, top, sign) for value in values)
        lines.append(f"{label:>{_LABEL_WIDTH - 1}} {cells}{sign * (columns - len(values))}".rstrip())
    return lines


def _columns(values: list[int], columns: int) -> list[int]:
    """The whole run: where there are more values than columns, each column is the most of its part."""
    if len(values) <= columns:
        return values
    edges = [i * len(values) // columns for i in range(columns + 1)]
    return [max(values[a:b]) for a, b in pairwise(edges)]


def _top(card: CardHistory, history: History) -> int:
    """The card's memory, or as small a part of it as has everything in sight."""
    total = card.last.total_bytes
    highest = max(card.peak_bytes, history.predicted_bytes or 0)
    return next((total >> halvings for halvings in (3, 2, 1) if highest * 1.1 <= total >> halvings), total)


def _row(value: int, top: int) -> int:
    return min(_ROWS - 1, value * _ROWS // top)


def _cell(value: int, row: int, top: int, sign: str) -> str:
    eighths = round(value * _ROWS * 8 / top) - row * 8
    return sign if eighths <= 0 else _BLOCKS[min(8, eighths)]


def _figures(card: CardHistory, history: History) -> str:
    last = card.last
    parts = [
        f"now {format_gib(last.watched_bytes)}",
        f"peak {format_gib(card.peak_bytes)} at {clock(card.peak_seconds)}",
    ]
    if history.predicted_bytes is not None:
        parts.append(f"predicted {format_gib(history.predicted_bytes)}")
    if last.basis != "card":
        parts.append(BASES[last.basis])
    return ", ".join(parts)


def _state(last: CardSample) -> str:
    parts = [f"card: {format_gib(last.used_bytes)} of {format_gib(last.total_bytes)} used ({last.used_share:.0%})"]
    if last.busy_percent is not None:
        parts.append(f"{last.busy_percent} % busy")
    if last.temperature_celsius is not None:
        parts.append(f"{last.temperature_celsius} °C")
    return ", ".join(parts)


def _processes(last: CardSample) -> Iterator[RenderableType]:
    if not last.processes:
        return
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("process", "user", "name", "uses", ""):
        table.add_column(heading, no_wrap=True, justify="right" if heading == "uses" else "left")
    for process in last.processes[:_MOST_PROCESSES]:
        table.add_row(*process_cells(process), "watched" if process.pid in last.watched_pids else "")
    yield table
    if len(last.processes) > _MOST_PROCESSES:
        yield Text(f"and {len(last.processes) - _MOST_PROCESSES} more", style="dim")


def plain_lines(sample: Sample, history: History) -> Iterator[str]:
    """For a file or a pipe: one line a card."""
    for card in sample.cards:
        watched = "" if card.basis == "card" else f", watched {format_gib(card.watched_bytes)}"
        predicted = "" if history.predicted_bytes is None else f", predicted {format_gib(history.predicted_bytes)}"
        yield f"{clock(sample.seconds)}  {card.index}: {_state(card).removeprefix('card: ')}{watched}{predicted}"
    for problem in sample.problems:
        yield f"{clock(sample.seconds)}  {problem}"


def summary_lines(history: History) -> Iterator[str]:
    """Peak, when, of how much, beside the prediction; cards that the watched processes never used are left out."""
    used = [card for _, card in sorted(history.cards.items()) if card.peak_bytes] or list(history.cards.values())
    for card in used:
        total = card.last.total_bytes
        text = (
            f"card {card.last.index}: peak {format_gib(card.peak_bytes)} at {clock(card.peak_seconds)}, of "
            f"{format_gib(total)} ({card.peak_bytes / total:.0%})"
        )
        if history.predicted_bytes is not None:
            text += f"; predicted {format_gib(history.predicted_bytes)}"
            text += f" ({signed_percent(card.peak_bytes, history.predicted_bytes)})"
        yield text
    for basis in dict.fromkeys(card.last.basis for card in used):
        yield f"that is {BASES[basis]}, seen at {history.n_samples} moments"


def summary_document(history: History) -> dict[str, Any]:
    return {
        "format": "vramcast-watch",
        "version": 1,
        "subject": history.subject,
        "seconds": round(history.seconds, 3),
        "samples": history.n_samples,
        "threshold": history.threshold,
        "predicted_bytes": history.predicted_bytes,
        "gpus": [_card_document(card) for _, card in sorted(history.cards.items())],
        "problems": list(history.problems),
    }


def _card_document(card: CardHistory) -> dict[str, Any]:
    last = card.last
    return {
        "device": last.index,
        "card": last.name,
        "total_bytes": last.total_bytes,
        "peak_bytes": card.peak_bytes,
        "peak_seconds": round(card.peak_seconds, 3),
        "basis": last.basis,
        "peak_used_bytes": card.peak_used_bytes,
        "peak_used_seconds": round(card.peak_used_seconds, 3),
        "last_used_bytes": last.used_bytes,
        "lost": card.lost,
    }


def clock(seconds: float) -> str:
    """1:02:03, or 02:03."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes:02}:{whole % 60:02}"


def warning_texts(warnings: Iterable[str]) -> list[str]:
    return [f"vramcast: warning: {warning}" for warning in warnings]
