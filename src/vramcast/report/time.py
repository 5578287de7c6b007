"""The time of a step as lines and tables, for a terminal and for a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from vramcast.base.language import name as named
from vramcast.base.language import say
from vramcast.report.folded_tree import Branch, Row, Values, rows
from vramcast.report.page import Grid, Line, Page
from vramcast.report.wording import duration, percent
from vramcast.report.wording import seconds as in_seconds
from vramcast.timing import ModuleTime, StepTime, Throughput

_MOST_ROWS = 12
_LEAST_LIMIT = 0.1
_NANO = 1e9


def time_page(time: StepTime, throughput: Throughput | None = None) -> Page:
    """How long, where it goes, and what limits it."""
    page: list[Line | Grid] = [Line(headline(time, throughput), "heading"), Line(_limits(time))]
    if time.communication_seconds:
        page.append(Line(where_time_goes(time)))
    if throughput is not None and throughput.epoch_seconds is not None:
        page.append(Line(_durations(throughput)))
    page.append(Line(source(time), "aside"))
    page.append(Line(say("host assumed: {host}", host=named(time.host)), "aside"))
    page.append(_phases(time))
    modules = _modules(time)
    if modules.rows:
        page.append(modules)
    return page


def headline(time: StepTime, throughput: Throughput | None = None) -> str:
    text = say("a step takes {seconds} ({range})", seconds=in_seconds(time.seconds), range=_range(time))
    if throughput is not None:
        text += say(", {rate} samples/s", rate=_rate(throughput.samples_per_second))
        if throughput.tokens_per_second is not None:
            text += say(", {rate} tokens/s", rate=_rate(throughput.tokens_per_second))
    return text


def _range(time: StepTime) -> str:
    return say("{low} to {high}", low=in_seconds(time.low_seconds), high=in_seconds(time.high_seconds))


def _limits(time: StepTime) -> str:
    ordered = sorted(time.limits.items(), key=lambda item: -item[1])
    reasons = ", ".join(f"{named(name)} {share:.0%}" for name, share in ordered if share >= _LEAST_LIMIT)
    text = say("limited by {reasons}", reasons=reasons)
    if time.peak_share:
        text += say("; {share} of the card's peak arithmetic", share=f"{time.peak_share:.0%}")
    if time.host_bound:
        text += say("; the card alone would take {seconds}", seconds=in_seconds(time.card_seconds))
    return text


def where_time_goes(time: StepTime) -> str:
    """Compute, communication and host, of a step with collectives."""
    exposed, host = time.exposed_communication_seconds, time.limits.get("host", 0.0) * time.seconds
    compute = max(0.0, time.seconds - exposed - host)
    text = f"compute {in_seconds(compute)}, exposed communication {in_seconds(exposed)}, host {in_seconds(host)}"
    bubble = time.phases.get("pipeline bubble", 0.0)
    waiting = f", {in_seconds(bubble)} of it the pipeline's bubble" if bubble else ""
    return f"{text}{waiting}; collectives take {in_seconds(time.communication_seconds)} in all"


def _durations(throughput: Throughput) -> str:
    assert throughput.epoch_seconds is not None
    text = f"an epoch takes {duration(throughput.epoch_seconds)}"
    if throughput.total_seconds is not None and throughput.total_seconds != throughput.epoch_seconds:
        text += f", the whole training {duration(throughput.total_seconds)}"
    return text


def source(time: StepTime) -> str:
    """Where the times of kernels come from."""
    if time.calibrated:
        return say("times of kernels: {source}", source=time.source)
    return say("this card was not measured: {source}", source=time.source)


def _phases(time: StepTime) -> Grid:
    lines = []
    for name, seconds in time.phases.items():
        lines.append((named(name), _milliseconds(seconds), percent(seconds, time.seconds)))
        if name == "backward" and time.recompute_seconds:
            share = percent(time.recompute_seconds, time.seconds)
            lines.append((f"  {say('recomputation')}", _milliseconds(time.recompute_seconds), share))
    return Grid((say("phase"), "ms", say("share")), tuple(lines), total=(say("step"), _milliseconds(time.seconds), ""))


def _modules(time: StepTime) -> Grid:
    recomputes = time.recompute_seconds > 0
    recomputed = (say("recomputed"),) if recomputes else ()
    headings = (say("module"), say("forward, ms"), say("backward"), *recomputed, say("share"))
    lines = []
    for row in module_rows(time.modules):
        forward, backward, again, other = (value / _NANO for value in row.values)
        parts = [forward, backward, *([again] if recomputes else [])]
        share = percent(forward + backward + again + other, time.seconds)
        lines.append(("  " * row.depth + row.label, *(_milliseconds(part) for part in parts), share))
    return Grid(headings, tuple(lines))


def module_rows(root: ModuleTime) -> list[Row]:
    """Nanoseconds forward, backward, recomputed and else; stacks of equal layers as one line."""
    return rows(_branch(root), _sums, sum, most=_MOST_ROWS, depth=4)


def _branch(node: ModuleTime) -> Branch:
    parts = (node.forward_seconds, node.backward_seconds, node.recompute_seconds, node.other_seconds)
    values = tuple(round(seconds * _NANO) for seconds in parts)
    children = sorted(node.children, key=lambda child: _place(child.name))
    return Branch(node.name.rpartition(".")[2], node.name, values, tuple(map(_branch, children)))


def _place(name: str) -> tuple[int, int]:
    """Numbered layers in their order; the others stay where they are."""
    last = name.rpartition(".")[2]
    return (0, int(last)) if last.isdecimal() else (0, 0)


def _sums(values: Sequence[Values]) -> Values:
    return tuple(map(sum, zip(*values, strict=True)))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}" if seconds else "–"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
