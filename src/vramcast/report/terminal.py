"""A prediction as a page of text: the verdict first, then what takes the memory, then what to know about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from vramcast.base.language import say, sentence
from vramcast.base.units import format_gib, format_size
from vramcast.memory import Account, Part, Prediction
from vramcast.memory.account import largest
from vramcast.report.curve import curve_lines
from vramcast.report.grid import table
from vramcast.report.module_rows import module_rows
from vramcast.report.page import print_page
from vramcast.report.time import time_page
from vramcast.report.wording import host_lines, interval, percent, place, verdict
from vramcast.trace import Note

_NOTES_PER_TOPIC = 5


def print_prediction(prediction: Prediction, console: Console) -> None:
    console.print(Text(verdict(prediction), style="bold green" if prediction.fits else "bold red"))
    for line in peak_lines(prediction):
        console.print(Text(line))
    console.print()
    print_kinds(prediction.account.parts, prediction.account.device_bytes, console)
    console.print()
    print_modules(prediction.account, console)
    console.print()
    print_phases(prediction.account, console)
    for line in curve_lines(prediction):
        console.print(Text(line))
    if prediction.time is not None:
        console.print()
        print_page(time_page(prediction.time), console)
    print_notes(prediction.notes, console)
    console.print()
    console.print(Text(footer(prediction), style="dim"))


def print_account(account: Account, console: Console) -> None:
    """Only the moment of the peak: what was alive, by kind and by module."""
    console.print(Text(f"peak at {place(account.moment)}"))
    console.print()
    print_kinds(account.parts, account.device_bytes, console)
    console.print()
    print_modules(account, console)


def print_every_module(account: Account, console: Console) -> None:
    """The whole tree, nothing merged and nothing left out."""
    grid = table("module", "own GiB", "with all below", "mostly")
    for node in account.modules.walk():
        depth = node.name.count(".") + 1 if node.name else 0
        label = node.name.rpartition(".")[2] or "(all)"
        kinds = node.by_kind_bytes
        grid.add_row(
            "  " * depth + label,
            f"{node.self_bytes / 2**30:.3f}",
            f"{node.total_bytes / 2**30:.3f}",
            max(kinds, key=lambda kind: kinds[kind], default=""),
        )
    console.print(grid)


def print_kinds(parts: Sequence[Part], total_bytes: int, console: Console) -> None:
    grid = table("at the peak", "GiB", "share")
    for part in largest(parts):
        grid.add_row(part.name, f"{part.size_bytes / 2**30:.2f}", percent(part.size_bytes, total_bytes))
    grid.add_section()
    grid.add_row("on the device", f"{total_bytes / 2**30:.2f}", "", style="bold")
    console.print(grid)


def print_modules(account: Account, console: Console) -> None:
    total_bytes = account.modules.total_bytes
    grid = table("module", "GiB", "share", "mostly")
    for row in module_rows(account.modules):
        grid.add_row(
            "  " * row.depth + row.label,
            f"{row.size_bytes / 2**30:.2f}",
            percent(row.size_bytes, total_bytes),
            row.largest_kind,
        )
    console.print(grid)


def print_phases(account: Account, console: Console) -> None:
    """The first step and the last one; those between repeat the last."""
    grid = table("step", "phase", "allocated", "reserved", text_columns=2)
    steps = [stretch.step for stretch in account.phases]
    for stretch in account.phases:
        if stretch.step not in (min(steps), max(steps)):
            continue
        allocated, reserved = stretch.peak_allocated_bytes, stretch.peak_reserved_bytes
        grid.add_row(str(stretch.step + 1), stretch.phase, format_gib(allocated), format_gib(reserved))
    console.print(grid)


def print_notes(notes: Iterable[Note], console: Console) -> None:
    by_topic: dict[str, list[Note]] = {}
    for note in notes:
        by_topic.setdefault(note.topic, []).append(note)
    for topic, group in by_topic.items():
        console.print()
        console.print(Text(f"note: {topic}", style="yellow"))
        for note in group[:_NOTES_PER_TOPIC]:
            times = f" ({note.count} times)" if note.count > 1 else ""
            where = f"{note.where}: " if note.where else ""
            console.print(Padding(Text(f"{where}{sentence(note.text)}{sentence(times)}"), (0, 0, 0, 2)))
        if len(group) > _NOTES_PER_TOPIC:
            console.print(Padding(Text(f"and {len(group) - _NOTES_PER_TOPIC} more (--json lists all)"), (0, 0, 0, 2)))


def peak_lines(prediction: Prediction) -> tuple[str, ...]:
    """The three figures, where the peak is or memory runs out, and what lies in the computer's memory."""
    return _peaks(prediction), _where(prediction), *host_lines(prediction.host)


def _peaks(prediction: Prediction) -> str:
    return (
        f"peak allocated {format_gib(prediction.peak_allocated_bytes)}, "
        f"reserved {format_gib(prediction.peak_reserved_bytes)}, "
        f"on the device {format_gib(prediction.device_bytes)}{interval(prediction)}"
    )


def _where(prediction: Prediction) -> str:
    refusal = prediction.out_of_memory
    if refusal is None:
        text = f"peak at {place(prediction.account.moment)}"
        if prediction.retries:
            times = "once" if prediction.retries == 1 else f"{prediction.retries} times"
            text += f"; cached memory is given back {times} to make room, which costs time"
        return text
    return (
        f"out of memory at {place(refusal.at)}: {format_size(refusal.tried_bytes)} more "
        f"with {format_gib(refusal.at.reserved_bytes)} reserved"
    )


def footer(prediction: Prediction) -> str:
    parts = [prediction.source] if prediction.source else []
    traced = say("{count} step traced" if prediction.steps == 1 else "{count} steps traced", count=prediction.steps)
    if prediction.replayed_steps > prediction.steps:
        traced += say(", the last repeated up to step {step}", step=prediction.replayed_steps)
    parts.append(traced)
    parts.append(f"torch {prediction.versions.get('torch', '?')}")
    if prediction.allocator_conf:
        parts.append(prediction.allocator_conf)
    if prediction.gpu.total_memory_modelled or prediction.gpu.context_modelled:
        modelled = [
            name
            for name, is_modelled in (
                ("total memory", prediction.gpu.total_memory_modelled),
                ("CUDA context", prediction.gpu.context_modelled),
            )
            if is_modelled
        ]
        parts.append(f"{' and '.join(modelled)} of this card modelled, not published")
    return "; ".join(parts)


__all__ = [
    "footer",
    "peak_lines",
    "print_account",
    "print_every_module",
    "print_kinds",
    "print_modules",
    "print_notes",
    "print_phases",
    "print_prediction",
    "table",
]
