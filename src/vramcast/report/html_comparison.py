"""Several results in one HTML report: what differs at their peaks, then each step on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from vramcast.base.language import name as named
from vramcast.base.language import say, typeset
from vramcast.base.units import format_gib
from vramcast.features.compare.peaks import Line, PeakTables, explained, peak_tables
from vramcast.features.compare.side_by_side import Comparison
from vramcast.memory import Prediction
from vramcast.report.comparison import all_grids
from vramcast.report.html_parts import Bar, bars, breakable, data, notes, page, section, table
from vramcast.report.html_report import FOOTER, Report, article
from vramcast.report.names import cell
from vramcast.report.pictures import pictures
from vramcast.report.wording import place, signed_size, verdict

_MOST_LINES = 40


def comparison_report(predictions: Mapping[str, Prediction], lines: Comparison | None = None) -> Report:
    """`lines` are all results, measurements among them; pictures are of the predictions that have their trace."""
    predictions = {cell(name): one for name, one in predictions.items()}
    drawn = {name: one for name, one in predictions.items() if one.trace is not None}
    names = list(predictions)
    tables = peak_tables(drawn) if len(drawn) > 1 else None
    title = say("{first} and {second}", first=names[0], second=names[1]) if len(names) == 2 else say("Comparison")
    body = _bars(predictions)
    if tables is not None:
        body += section(say("At the peaks, by kind"), _table(say("kind"), tables.kinds, tables, total=True))
        body += section(say("At the peaks, by module"), _table(say("module"), tables.modules, tables))
        body += section(say("At the peaks, by op"), _table(say("op and kind"), tables.ops, tables))
    for number, (name, one) in enumerate(drawn.items()):
        body += f'<h2 class="wrap">{escape(name)}: {escape(verdict(one))}</h2>{article(one, number)}'
        body += section(say("Assumed and not known"), notes(one.notes))
    if lines is not None:
        body += section(say("Line by line"), page(all_grids(lines)))
    first = _why(tables) if tables is not None else say("Side by side")
    said = (
        say("{name}: {verdict}; {peak}", name=name, verdict=verdict(one), peak=_peak(one))
        for name, one in predictions.items()
    )
    head = "".join(f'<p class="wrap">{escape(text)}</p>' for text in said)
    return Report(title, first, None, head, body, escape(say(FOOTER)), [pictures(one) for one in drawn.values()])


def _peak(prediction: Prediction) -> str:
    return say("peak at {place}", place=place(prediction.account.moment))


def _why(tables: PeakTables) -> str:
    """ "b needs 2.10 GiB more than a: gradients +1.20 GiB, …" """
    first, last = tables.names[0], tables.names[-1]
    difference = tables.device_bytes[-1] - tables.device_bytes[0]
    if not difference:
        return say("{last} needs as much as {first}", last=last, first=first)
    parts = [f"{named(line.name)} {signed_size(line.difference)}" for line in explained(tables) if line.difference]
    text = "{last} needs {size} more than {first}: {parts}"
    if difference < 0:
        text = "{last} needs {size} less than {first}: {parts}"
    return say(text, last=last, first=first, size=format_gib(abs(difference)), parts=", ".join(parts))


def _bars(predictions: Mapping[str, Prediction]) -> str:
    """Where all have one limit, against it."""
    limits = {one.limit_bytes for one in predictions.values()}
    if len(limits) != 1:
        return ""
    return section(
        say("Against the limit"),
        bars([Bar(name, one.device_bytes, one.fits) for name, one in predictions.items()], limits.pop()),
    )


def _table(heading: str, lines: Sequence[Line], tables: PeakTables, *, total: bool = False) -> str:
    shown, rest = lines[:_MOST_LINES], lines[_MOST_LINES:]
    rows = [_row(line) for line in shown]
    if rest:
        columns = zip(*(line.values for line in rest), strict=True)
        rows.append(_row(Line(say("{count} more", count=len(rest)), tuple(sum(column) for column in columns))))
    if total:
        rows.insert(0, _row(Line(say("on the card"), tables.device_bytes)))
    return table((heading, *tables.names, say("difference")), rows)


def _named(text: str) -> str:
    """A kind, a module, or an op with its kind, "aten.mm, saved activations"."""
    op, comma, kind = text.rpartition(", ")
    return typeset(f"{op}, {named(kind)}") if comma else named(text)


def _row(line: Line) -> list[str]:
    difference = f'<data value="{line.difference}">{signed_size(line.difference)}</data>' if line.difference else "–"
    return [
        breakable(_named(line.name)),
        *(data(value) for value in line.values),
        difference,
    ]
