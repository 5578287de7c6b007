"""Several results in one HTML report: what differs at their peaks, then each step on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from vramcast.base.units import format_gib
from vramcast.features.compare.peaks import Line, PeakTables, explained, peak_tables
from vramcast.features.compare.side_by_side import Comparison
from vramcast.memory import Prediction
from vramcast.report.comparison import all_grids
from vramcast.report.html_parts import Bar, bars, data, notes, page, section, table
from vramcast.report.html_report import FOOTER, Report, article
from vramcast.report.pictures import pictures
from vramcast.report.wording import place, signed_size, verdict

_MOST_LINES = 40


def comparison_report(predictions: Mapping[str, Prediction], lines: Comparison | None = None) -> Report:
    """`lines` are all results, measurements among them; pictures are of the predictions that have their trace."""
    drawn = {name: one for name, one in predictions.items() if one.trace is not None}
    tables = peak_tables(drawn) if len(drawn) > 1 else None
    title = " and ".join(predictions) if len(predictions) == 2 else "Comparison"
    body = _bars(predictions)
    if tables is not None:
        body += section("At the peaks, by kind", _table("kind", tables.kinds, tables, total=True))
        body += section("At the peaks, by module", _table("module", tables.modules, tables))
        body += section("At the peaks, by op", _table("op and kind", tables.ops, tables))
    for number, (name, one) in enumerate(drawn.items()):
        body += f'<h2 class="wrap">{escape(name)}: {escape(verdict(one))}</h2>{article(one, number)}'
        body += section("Assumed and not known", notes(one.notes))
    if lines is not None:
        body += section("Line by line", page(all_grids(lines)))
    first = _why(tables) if tables is not None else "Side by side"
    head = "".join(
        f'<p class="wrap">{escape(name)}: {escape(verdict(one))}; peak at {escape(place(one.account.moment))}</p>'
        for name, one in predictions.items()
    )
    return Report(title, first, None, head, body, FOOTER, [pictures(one) for one in drawn.values()])


def _why(tables: PeakTables) -> str:
    """ "b needs 2.10 GiB more than a: gradients +1.20 GiB, …" """
    first, last = tables.names[0], tables.names[-1]
    difference = tables.device_bytes[-1] - tables.device_bytes[0]
    if not difference:
        return f"{last} needs as much as {first}"
    parts = [f"{line.name} {signed_size(line.difference)}" for line in explained(tables) if line.difference]
    how = f"{format_gib(abs(difference))} {'more' if difference > 0 else 'less'}"
    return f"{last} needs {how} than {first}: {', '.join(parts)}"


def _bars(predictions: Mapping[str, Prediction]) -> str:
    """Where all have one limit, against it."""
    limits = {one.limit_bytes for one in predictions.values()}
    if len(limits) != 1:
        return ""
    return section(
        "Against the limit",
        bars([Bar(name, one.device_bytes, one.fits) for name, one in predictions.items()], limits.pop()),
    )


def _table(heading: str, lines: Sequence[Line], tables: PeakTables, *, total: bool = False) -> str:
    shown, rest = lines[:_MOST_LINES], lines[_MOST_LINES:]
    rows = [_row(line) for line in shown]
    if rest:
        columns = zip(*(line.values for line in rest), strict=True)
        rows.append(_row(Line(f"{len(rest)} more", tuple(sum(column) for column in columns))))
    if total:
        rows.insert(0, _row(Line("on the card", tables.device_bytes)))
    return table((heading, *tables.names, "difference"), rows)


def _row(line: Line) -> list[str]:
    difference = f'<data value="{line.difference}">{signed_size(line.difference)}</data>' if line.difference else "–"
    return [f'<span class="wrap">{escape(line.name)}</span>', *(data(value) for value in line.values), difference]
