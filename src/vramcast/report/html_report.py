"""Results as HTML reports: the verdict first, then pictures, then tables and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from vramcast.base.language import say, sentence
from vramcast.base.units import format_gib
from vramcast.features.advise.from_trace import EXPANDABLE, fits_with_expandable_segments
from vramcast.features.advise.result import Advice, Suggestion
from vramcast.features.plan.result import Ramp
from vramcast.features.what_if.result import WhatIfs
from vramcast.memory import Prediction
from vramcast.prediction.job_account import JobAccount
from vramcast.report.advice import advice_page
from vramcast.report.console import plain_text
from vramcast.report.html import card_table, parameter_table, stage_table
from vramcast.report.html_document import html_document
from vramcast.report.html_front import Way, front_picture
from vramcast.report.html_parts import (
    Bar,
    bars,
    data,
    figures,
    lanes_place,
    memory_place,
    notes,
    page,
    section,
    segments_place,
)
from vramcast.report.job import headline
from vramcast.report.measurement import print_measurement
from vramcast.report.outcomes import what_if_page
from vramcast.report.page import Line, Page
from vramcast.report.pictures import pictures
from vramcast.report.plan import plan_page
from vramcast.report.time import headline as time_headline
from vramcast.report.time import time_page
from vramcast.report.wording import host_lines, place, seconds, verdict
from vramcast.timing import Throughput


@dataclass(frozen=True, slots=True)
class Report:
    """One HTML file, before it is put together."""

    title: str
    verdict: str
    fits: bool | None
    """None where there is no verdict."""
    head: str
    body: str
    footer: str
    results: Sequence[dict[str, Any]] = ()
    """The pictures' data of each `article`."""

    def to_html(self) -> str:
        tone = "" if self.fits is None else " good" if self.fits else " bad"
        title, first = escape(sentence(self.title)), escape(sentence(self.verdict))
        header = f'<h1>{title}</h1><p class="verdict{tone}">{first}</p>{self.head}'
        return html_document(self.title, header, self.body, self.footer, {"results": list(self.results)})


Ranks = Sequence[Mapping[str, Any]]
"""Of each rank its number, whether it fits, and what it allocates and reserves at its peak."""


def prediction_report(
    prediction: Prediction, title: str = "", changes: Sequence[Bar] = (), ranks: Ranks = ()
) -> Report:
    """The report of a script's run, or of a saved trace."""
    shown = changes or _from_trace(prediction)
    return _report(title or prediction.source or say("a run"), prediction, None, shown, rank_bars(ranks, prediction))


def rank_bars(ranks: Ranks, prediction: Prediction) -> str:
    """Side by side against the limit, where several were predicted."""
    if len(ranks) < 2:
        return ""
    shown = [
        Bar(
            say("rank {number}", number=rank["rank"]),
            rank["peak_reserved_bytes"] + prediction.context_bytes,
            rank["fits"],
            say("{size} allocated at the peak", size=format_gib(rank["peak_allocated_bytes"])),
        )
        for rank in ranks
    ]
    return section(say("The ranks that were predicted"), bars(shown, prediction.limit_bytes), "ranks")


def job_report(account: JobAccount, changes: Sequence[Suggestion] = (), ranks: Ranks = ()) -> Report:
    prediction = account.prediction
    tables = (
        rank_bars(ranks, prediction)
        + section(say("Parameters"), parameter_table(account) if account.parameters.count else "")
        + section(say("Activations"), stage_table(account))
        + section(say("Cards that hold it"), card_table(account))
    )
    shown = [_asked(prediction), *map(suggested_bar, changes)] if changes else _from_trace(prediction)
    return _report(headline(account), prediction, account.throughput, shown, tables)


def advice_report(advice: Advice) -> Report:
    best = advice.best or ((advice.smallest,) if advice.smallest is not None else ())
    shown = [_asked(advice.asked), *(suggested_bar(one) for one in best if one.overrides)]
    ways = [
        Way(one.text, one.prediction.device_bytes, one.samples_per_second, one.prediction.fits)
        for one in {id(one): one for one in (*advice.best, *advice.front)}.values()
        if one.samples_per_second
    ]
    if ways and advice.asked.step_seconds:
        pace = best[0].samples_per_step / advice.asked.step_seconds  # changes leave the samples of a step as they are
        ways.append(Way("as it is", advice.asked.device_bytes, pace, advice.asked.fits))
    more = section(say("Memory against speed"), front_picture(ways, advice.asked.limit_bytes))
    more += section(say("All that was found"), page(advice_page(advice)))
    return _report(advice.job, advice.asked, None, shown, more)


def what_if_report(what_ifs: WhatIfs) -> Report:
    asked = what_ifs.asked
    shown = [_asked(asked.prediction)] + [
        Bar(one.text, one.prediction.device_bytes, one.prediction.fits, _pace(one.time.seconds if one.time else None))
        for one in what_ifs.outcomes
    ]
    ways = [
        Way(one.text, one.prediction.device_bytes, one.samples_per_second, one.prediction.fits)
        for one in (asked, *what_ifs.outcomes)
        if one.samples_per_second
    ]
    more = section(say("Memory against speed"), front_picture(ways, asked.prediction.limit_bytes))
    more += section(say("All that was tried"), page(what_if_page(what_ifs)))
    return _report(what_ifs.job, asked.prediction, asked.throughput, shown, more)


def page_report(title: str, found: Page, fits: bool | None = None) -> Report:
    """A result that has lines and tables alone; its first line is the verdict."""
    first, *rest = found
    text = first.text if isinstance(first, Line) else title
    return Report(title, text, fits, "", page(rest if isinstance(first, Line) else found), escape(say(FOOTER)))


def plan_report(ramp: Ramp) -> Report:
    """The runs up to the one that was wished for, against the limit."""
    shown = [
        Bar(f"{i}. {step.name}", step.prediction.device_bytes, step.prediction.fits)
        for i, step in enumerate(ramp.steps, 1)
    ]
    more = section(say("Run by run"), page(plan_page(ramp)[1:]))
    return _report(ramp.job, ramp.wished, None, shown, more, say("The runs, against the limit"))


def measurement_report(document: dict[str, Any]) -> Report:
    lines = plain_text(lambda console: print_measurement(document, console), 120).splitlines()
    return page_report("Measured on a GPU", [Line(lines[0]), *(Line(line, "code") for line in lines[1:])])


def article(prediction: Prediction, number: int, throughput: Throughput | None = None) -> str:
    """The pictures of one prediction; `number` says which data they draw."""
    made = section(
        say("Memory over the step"), memory_place(say(_EXACT)) if prediction.trace is not None else "", "memory"
    )
    made += section(
        say("Segments of the allocator at the peak"), segments_place() if prediction.trace else "", "segments"
    )
    if prediction.time is not None:
        made += section(say("Time of a step"), lanes_place() + page(time_page(prediction.time, throughput)), "lanes")
    return f'<article data-result="{number}">{made}</article>'


def main_figures(prediction: Prediction) -> str:
    pairs = [
        (say("needed on the card"), data(prediction.device_bytes, "device_bytes", gib=True)),
        (say("the card has"), data(prediction.limit_bytes, "limit_bytes", gib=True)),
        (
            say("left") if prediction.headroom_bytes >= 0 else say("missing"),
            data(prediction.headroom_bytes, "headroom_bytes", gib=True),
        ),
        (say("PyTorch reserves"), data(prediction.peak_reserved_bytes, "peak_reserved_bytes", gib=True)),
        (say("allocated at the peak"), data(prediction.peak_allocated_bytes, "peak_allocated_bytes", gib=True)),
        (say("with a margin"), data(prediction.with_margin_bytes, "with_margin_bytes", gib=True)),
    ]
    if prediction.time is not None:
        pairs.append((say("a step"), escape(seconds(prediction.time.seconds))))
    return figures(pairs)


def _report(
    title: str,
    prediction: Prediction,
    throughput: Throughput | None,
    changes: Sequence[Bar],
    tables: str = "",
    against: str = "",
) -> Report:
    lines = [_where(prediction), *host_lines(prediction.host)]
    if prediction.time is not None:
        lines.append(time_headline(prediction.time, throughput))
    head = "".join(f'<p class="wrap">{escape(line)}</p>' for line in lines)
    if not against:
        limit = format_gib(prediction.limit_bytes, 1)
        against = say("Against the limit") if prediction.fits else say("What makes it fit {limit}", limit=limit)
    body = (
        main_figures(prediction)
        + section(against, bars(changes, prediction.limit_bytes) if len(changes) > 1 else "")
        + article(prediction, 0, throughput)
        + tables
        + section(say("Assumed and not known"), notes(prediction.notes))
    )
    versions = ", ".join(f"{name} {version}" for name, version in prediction.versions.items())
    footer = f"{escape(prediction.source)}<br>{escape(versions)}<br>{escape(say(FOOTER))}"
    return Report(title, verdict(prediction), prediction.fits, head, body, footer, [pictures(prediction)])


def _where(prediction: Prediction) -> str:
    refusal = prediction.out_of_memory
    if refusal is None:
        return say("peak at {place}", place=place(prediction.account.moment))
    text = "runs out of memory at {place}; the pictures show what it would need on a card without a limit"
    return say(text, place=place(refusal.at))


def _asked(prediction: Prediction) -> Bar:
    return Bar(say("as it is"), prediction.device_bytes, prediction.fits, _pace(prediction.step_seconds))


def suggested_bar(one: Suggestion) -> Bar:
    cost = "; ".join(change.cost for change in one.changes if change.cost)
    aside = "; ".join(part for part in (_pace(one.step_seconds), cost, one.options) if part)
    return Bar(one.text, one.prediction.device_bytes, one.prediction.fits, aside)


def _from_trace(prediction: Prediction) -> list[Bar]:
    """What the trace at hand shows without another one."""
    expandable = fits_with_expandable_segments(prediction)
    if expandable is None:
        return [_asked(prediction)]
    text = f"PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}"
    return [_asked(prediction), Bar(say("expandable segments"), expandable.device_bytes, True, text)]


def _pace(value: float | None) -> str:
    return "" if not value else say("{seconds} a step", seconds=seconds(value))


_EXACT = (
    "By kind, as stacked areas. Of a step with many events, the highest and the lowest moment of each stretch are "
    "drawn, and the peak; at every moment drawn the sums are exact. Drag to zoom, double-click to see all of it."
)
FOOTER = "made by vramcast; this file loads nothing and sends nothing"
