"""The account of a job for a notebook: a fragment of HTML without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from vramcast.base.language import say, sentence
from vramcast.memory.account import largest
from vramcast.prediction.job_account import JobAccount
from vramcast.report.job import headline
from vramcast.report.job_tables import Unit, card_rows, parameter_rows, shape_text, stage_columns
from vramcast.report.page import page_html
from vramcast.report.terminal import peak_lines
from vramcast.report.time import time_page
from vramcast.report.wording import percent, verdict

_RIGHT = ' style="text-align:right;white-space:nowrap"'


def job_page(account: JobAccount) -> str:
    prediction = account.prediction
    colour = "#1a7f37" if prediction.fits else "#b00020"
    parts = [
        f"<div>{escape(headline(account))}</div>",
        f'<div style="color:{colour};font-weight:bold">{escape(verdict(prediction))}</div>',
        *(f"<div>{escape(line)}</div>" for line in peak_lines(prediction)),
    ]
    if account.parameters.count:
        parts.append(parameter_table(account))
    parts.append(stage_table(account))
    total = prediction.account.device_bytes
    kinds = largest(prediction.account.parts)
    lines = [(part.name, _gib(part.size_bytes), percent(part.size_bytes, total)) for part in kinds]
    parts.append(_table(("at the peak", "GiB", "share"), lines))
    parts.append(card_table(account))
    if account.time is not None:
        parts.append(page_html(time_page(account.time, account.throughput)))
    if prediction.notes:
        notes = "".join(
            f"<li>{escape(sentence(note.topic))}: {escape(sentence(note.text))}</li>" for note in prediction.notes
        )
        parts.append(f"<ul>{notes}</ul>")
    return f'<div class="vramcast">{"".join(parts)}</div>'


def parameter_table(account: JobAccount) -> str:
    unit = Unit.for_size(account.parameters.total_bytes)
    lines = [
        (_indented(row.depth, row.label), f"{row.values[0]:,}", *(unit.text(size) for size in row.values[1:]))
        for row in parameter_rows(account.parameters)
    ]
    weights = say("weights, {unit}", unit=unit.name)
    return _table((say("parameters"), say("count"), weights, say("gradients"), say("optimizer")), lines)


def stage_table(account: JobAccount) -> str:
    found = stage_columns(account.stages)
    lines = [
        (
            _indented(line.row.depth, line.row.label),
            shape_text(line.row.path, account.output_shapes),
            *(found.unit.text(size) for size in (*line.sizes, *line.roles)),
        )
        for line in found.lines
    ]
    headings = ("activations", "output", *found.sizes, *found.roles)
    return _table([sentence(heading) for heading in headings], lines, text_columns=2)


def card_table(account: JobAccount) -> str:
    shown = card_rows(account.cards).shown
    cards = [(card.gpu.short_name, _gib(card.limit_bytes), _gib(card.headroom_bytes)) for card in shown]
    return _table((say("cards that hold it"), "GiB", say("to spare")), cards)


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """One that is wider than its place scrolls by itself."""

    def cells(tag: str, line: Sequence[str]) -> str:
        sides = ("" if i < text_columns else _RIGHT for i in range(len(line)))
        return "".join(f"<{tag}{side}>{escape(text)}</{tag}>" for side, text in zip(sides, line, strict=True))

    body = "".join(f"<tr>{cells('td', line)}</tr>" for line in lines)
    whole = f"<table><thead><tr>{cells('th', headings)}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" style="overflow-x:auto" tabindex="0">{whole}</div>' if body else ""


def _indented(depth: int, label: str) -> str:
    return "\u2003" * depth + label


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f}"
