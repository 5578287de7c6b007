"""A memory snapshot of PyTorch as text, as a document, and as an HTML report."""

from __future__ import annotations

from html import escape
from typing import Any

from vramcast.base.language import say
from vramcast.base.units import format_gib, format_size
from vramcast.features.snapshot.snapshot import LineUse, Snapshot
from vramcast.report.html_parts import data, figures, memory_place, section, segments_place, table
from vramcast.report.html_report import FOOTER, Report
from vramcast.report.page import Grid, Line, Page
from vramcast.report.pictures import course_columns
from vramcast.report.wording import percent

_SHOWN_LINES = 12
_MOST_LINES = 60
_EXACT = (
    "What is active, by the line of code that allocated it. Of a long recording, the highest and the lowest moment of "
    "each stretch are drawn, and the peak. Drag to zoom, double-click to see all of it."
)


def snapshot_document(found: Snapshot) -> dict[str, Any]:
    return {
        "schema": "vramcast-snapshot/1",
        "file": found.name,
        "device": found.device,
        "entries": found.entries,
        "refused": found.refused,
        "peak_active_bytes": found.peak_active_bytes,
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "reserved_at_peak_bytes": found.reserved_at_peak_bytes,
        "before_the_recording_bytes": found.before_bytes,
        "lines": [{"line": one.line, "bytes": one.size_bytes, "blocks": one.blocks} for one in found.lines],
        "other_devices": {str(device): entries for device, entries in found.other_devices.items()},
    }


def snapshot_page(found: Snapshot) -> Page:
    shown = found.lines[:_SHOWN_LINES]
    rows = [(one.line, *_figures(one, found)) for one in shown]
    rest = found.lines[_SHOWN_LINES:]
    if rest:
        others = LineUse(
            say("{count} more", count=len(rest)), sum(one.size_bytes for one in rest), sum(one.blocks for one in rest)
        )
        rows.append((others.line, *_figures(others, found)))
    headings = (say("active at the peak, by line"), say("size"), say("share"), say("blocks"))
    return [Line(_headline(found)), *(Line(text) for text in _asides(found)), Grid(headings, tuple(rows))]


def snapshot_report(found: Snapshot) -> Report:
    pairs = [
        (say("active at the peak"), data(found.peak_active_bytes, "peak_active_bytes", gib=True)),
        (say("reserved then"), data(found.reserved_at_peak_bytes, "reserved_at_peak_bytes", gib=True)),
        (say("reserved at the highest"), data(found.peak_reserved_bytes, "peak_reserved_bytes", gib=True)),
        (say("entries"), f"{found.entries:,}"),
    ]
    lines = [
        (f'<span class="wrap">{escape(one.line)}</span>', data(one.size_bytes), *_figures(one, found)[1:])
        for one in found.lines[:_MOST_LINES]
    ]
    body = (
        figures(pairs)
        + '<article data-result="0">'
        + section(say("Memory over the recording"), memory_place(say(_EXACT)), "memory")
        + section(say("Segments of the allocator at the end"), segments_place(), "segments")
        + "</article>"
        + section(say("By line at the peak"), table((say("line"), say("size"), say("share"), say("blocks")), lines))
    )
    head = "".join(f'<p class="wrap">{escape(text)}</p>' for text in _asides(found))
    course = course_columns(found.course, 0, 0, found.kinds) | {"recording": True}
    return Report(found.name, _headline(found), None, head, body, escape(say(FOOTER)), [{"course": course}])


def _headline(found: Snapshot) -> str:
    text = "At the peak {active} is active; PyTorch holds {reserved}"
    return say(text, active=format_gib(found.peak_active_bytes), reserved=format_gib(found.reserved_at_peak_bytes))


def _asides(found: Snapshot) -> list[str]:
    texts = [say("recorded on card {device}: {entries} entries", device=found.device, entries=f"{found.entries:,}")]
    if found.before_bytes:
        text = "{size} of it was allocated before the recording began: where, the snapshot does not say"
        texts.append(say(text, size=format_size(found.before_bytes)))
    if found.refused:
        texts.append(say("{count} allocations were refused: out of memory", count=found.refused))
    if found.other_devices:
        cards = ", ".join(map(str, found.other_devices))
        texts.append(say("other cards in the file: {cards} (--device N)", cards=cards))
    return texts


def _figures(one: LineUse, found: Snapshot) -> tuple[str, str, str]:
    return format_size(one.size_bytes), percent(one.size_bytes, found.peak_active_bytes), f"{one.blocks:,}"
