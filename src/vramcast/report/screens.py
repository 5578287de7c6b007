"""The screen of each result: verdict, what takes the memory, what to change or what is left, time, what was assumed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from vramcast.base.language import say, sentence
from vramcast.base.units import GIB, format_gib
from vramcast.features.advise.from_trace import EXPANDABLE, Room, fits_with_expandable_segments, room
from vramcast.features.advise.option import RISKS
from vramcast.features.advise.result import Advice, Suggestion
from vramcast.features.check.verdict import Verdict
from vramcast.features.compare.scenario_results import Scenarios
from vramcast.features.compare.side_by_side import Comparison
from vramcast.memory import Prediction
from vramcast.prediction.job_account import JobAccount
from vramcast.report.advice import largest_lines, nothing_fits
from vramcast.report.check import head_lines
from vramcast.report.comparison import main_grids
from vramcast.report.grid import plain_rows, shortened
from vramcast.report.job import headline
from vramcast.report.page import Line, spoken_grid
from vramcast.report.scenarios import scenarios_grid, scenarios_verdict
from vramcast.report.screen import USUAL_WIDTH, Section, compose, memory, wrapped
from vramcast.report.terminal import footer
from vramcast.report.time import headline as time_headline
from vramcast.report.time import source
from vramcast.report.wording import host_lines, place, seconds, verdict
from vramcast.timing import StepTime, Throughput
from vramcast.trace import Note

Screen = list[Line]
_NOTES = 4
_LEAST_MODULE = 12
"""Letters of a module's name that are shown, however narrow the screen is."""
_FILES = "files"
"""The topic of notes that say what would have been written and deleted."""
_SHOWN = 3
_FLAG_LINES = {1: 5, 2: 4, 3: 2}
"""For what to type, by how many changes are shown."""
_DROPPED = ("trained", "other", "gradients", "optimizer", "weights")
_DIFFERENCES = ("diff",)
"""Columns that a narrow terminal does without."""
_EIGHT_BIT = 0.74
"""Of fp32 optimizer state, what 8-bit Adam saves."""
_LARGE = 100.0
"""Beyond so many times the batch nothing is said of how much would fit."""


def prediction_screen(prediction: Prediction, width: int = USUAL_WIDTH) -> Screen:
    """Of a script: its job is not known, so its batch is spoken of as a multiple."""
    head = [*_verdict(prediction, width), *wrapped(_where(prediction), width, most=2)]
    return compose(
        [
            Section(tuple(head), least=len(head)),
            *memory(prediction.account, width),
            _room_or_changes(prediction, None, width),
            _time(prediction.time, None, width),
            _assumed(prediction.notes, prediction.time, width),
            _footer(say("--full: all tables; {footer}", footer=footer(prediction)), width),
        ]
    )


def job_screen(account: JobAccount, changes: Sequence[Suggestion] = (), width: int = USUAL_WIDTH) -> Screen:
    prediction = account.prediction
    head = [*wrapped(headline(account), width, most=2), *_verdict(prediction, width)]
    head += wrapped(_where_in_a_line(prediction, width), width, most=1)
    head += [line for text in host_lines(prediction.host) for line in wrapped(text, width, most=2)]
    return compose(
        [
            Section(tuple(head), least=len(head)),
            *memory(prediction.account, width),
            _changes(changes, width) if changes else _room_or_changes(prediction, account.sizes.get("batch"), width),
            _time(account.time, account.throughput, width),
            _assumed(prediction.notes, account.time, width),
            _footer(say("--full: every table; `vramcast advise` searches all that can be changed"), width),
        ]
    )


def check_screen(
    found: Verdict, time: StepTime | None, throughput: Throughput | None, batch: int | None, width: int = USUAL_WIDTH
) -> Screen:
    head = [line for text, tone in head_lines(found) for line in wrapped(text, width, tone, most=2)]
    kinds = ("process", "margin") if found.changes else ("process", "margin", "batch", "card")
    pointer = found.pointer.text if found.pointer.kind in kinds else ""
    left = _changes(found.changes, width)
    if not found.changes and found.pointer.kind != "batch":
        left = _room_or_changes(found.prediction, batch, width)
    what = f" ({found.recognised_as})" if found.recognised_as else ""
    more = "`vramcast advise` searches all that can be changed" if not found.fits else "`vramcast predict` has more"
    return compose(
        [
            Section(tuple(head), least=len(head)),
            *memory(found.prediction.account, width),
            left,
            Section(tuple(wrapped(pointer, width, most=3)), least=1),
            _time(time, throughput, width),
            _assumed(found.prediction.notes, time, width),
            _footer(f"{found.name}{what}; {more}", width),
        ]
    )


def advice_screen(advice: Advice, width: int = USUAL_WIDTH) -> Screen:
    asked = advice.asked
    sections = [Section(tuple(_verdict(asked, width))), *memory(asked.account, width)]
    if advice.best:
        sections.append(_changes(advice.best, width, is_search=True))
    else:
        sections.append(_nothing_fits(advice, width))
    texts = (*largest_lines(advice), *advice.next_questions)
    largest = [line for text in texts for line in wrapped(text, width, most=2)]
    sections.append(Section(tuple(largest), least=min(2 + len(advice.next_questions), len(largest))))
    sections.append(_time(advice.time, None, width))
    sections.append(_assumed(asked.notes, advice.time, width))
    kept = f"; kept: {', '.join(advice.keep)}" if advice.keep else ""
    text = f"{advice.job}; {advice.combinations:,} combinations, {advice.traces} runs traced{kept}; --full: all of it"
    sections.append(_footer(text, width))
    return compose(sections)


def scenarios_screen(found: Scenarios, width: int = USUAL_WIDTH) -> Screen:
    first = [line for text, tone in scenarios_verdict(found) for line in wrapped(text, width, tone, most=3)]
    grid = scenarios_grid(found)
    rows = [Line(row, "code") for row in plain_rows(grid.headings, grid.rows, width, drop=_DROPPED)]
    predictions = [one.prediction for one in found.rows if one.prediction is not None]
    notes = tuple(dict.fromkeys(note for one in predictions for note in one.notes))
    return compose(
        [
            Section(tuple(first), least=len(first)),
            Section(tuple(rows), least=4, blank_before=True),
            _assumed(notes, None, width),
            _footer("--full: every scenario; --lines: line by line", width),
        ]
    )


def comparison_screen(found: Comparison, width: int = USUAL_WIDTH) -> Screen:
    reference = found.columns[found.reference]
    title = f"differences are from {reference.name} ({reference.kind}, {reference.gpu})"
    sections = [Section(tuple(wrapped(title, width, "heading", most=2)))]
    for grid in map(spoken_grid, main_grids(found)):
        drop = [sentence(heading) for heading in _DIFFERENCES]
        rows = tuple(Line(row, "code") for row in plain_rows(grid.headings, grid.rows, width, drop=drop))
        sections.append(Section(rows, least=2, blank_before=True))
    sections.append(_footer("--full: phases, steps and modules too", width))
    return compose(sections)


def _verdict(prediction: Prediction, width: int) -> list[Line]:
    return wrapped(verdict(prediction), width, "good" if prediction.fits else "bad", most=2)


def _where(prediction: Prediction) -> str:
    refusal = prediction.out_of_memory
    if refusal is None:
        return say("peak at {place}", place=place(prediction.account.moment))
    reserved = format_gib(refusal.at.reserved_bytes)
    return say("runs out of memory at {place}, with {reserved} reserved", place=place(refusal.at), reserved=reserved)


def _where_in_a_line(prediction: Prediction, width: int) -> str:
    """The same in one line; the module's name is shortened where that is too long."""
    text = _where(prediction)
    if len(text) <= width:
        return text
    refusal = prediction.out_of_memory
    moment = prediction.account.moment if refusal is None else refusal.at
    begins = "peak at" if refusal is None else "runs out of memory at"
    room = width - len(f"{begins} {place(replace(moment, module='-'))}") + 1
    return f"{begins} {place(replace(moment, module=shortened(moment.module, max(room, _LEAST_MODULE))))}"


def _room_or_changes(prediction: Prediction, batch: int | None, width: int) -> Section:
    """From the trace at hand."""
    found = room(prediction, batch)
    texts = [_left(prediction, found)] if prediction.fits else _to_fit(prediction, found)
    lines = [line for text in texts if text for line in wrapped(text, width, most=2, indent="   ")]
    return Section(tuple(lines), least=len(lines), blank_before=True)


def _left(prediction: Prediction, found: Room | None) -> str:
    left = say("{left} left", left=format_gib(prediction.headroom_bytes))
    # A run that was refused memory and shrank fits, too, with a scale below one.
    if found is None or prediction.barely_fits or found.scale <= 1:
        return left
    if found.batch is not None:
        return say("{left}: about batch {batch} would fit, judged by this trace", left=left, batch=f"{found.batch:,}")
    if found.scale >= _LARGE:
        return left
    scale = f"{found.scale:.1f}"
    return say("{left}: about {scale} × the batch would fit, judged by this trace", left=left, scale=scale)


def _to_fit(prediction: Prediction, found: Room | None) -> list[str]:
    texts = []
    expandable = fits_with_expandable_segments(prediction)
    if expandable is not None:
        texts.append(
            say(
                "fits with expandable segments, which cost nothing ({size}): {setting}",
                size=format_gib(expandable.device_bytes),
                setting=f"PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}",
            )
        )
    if found is None:
        return texts
    state = prediction.account.part("optimizer state")
    if state and prediction.device_bytes - _EIGHT_BIT * state <= prediction.limit_bytes:
        left = format_gib(prediction.device_bytes - round(_EIGHT_BIT * state), 1)
        text = "8-bit Adam would need about {size}, judged by this trace: bitsandbytes.optim.AdamW8bit"
        texts.append(say(text, size=left))
    if found.scale <= 0 or found.batch == 0:
        texts.append(say("no batch fits: what does not grow with it is too large alone (optimizer, precision, LoRA)"))
    elif found.batch is not None:
        text = "about batch {batch} would fit, judged by this trace; accumulate for the same result"
        texts.append(say(text, batch=f"{found.batch:,}"))
    else:
        text = "about {scale} × the batch would fit, judged by this trace; accumulate for the same"
        texts.append(say(text, scale=f"{found.scale:.2f}"))
    return texts


def _changes(changes: Sequence[Suggestion], width: int, *, is_search: bool = False) -> Section:
    """One line each with its memory and time, then what it costs and what to type."""
    if not changes:
        return Section(())
    if not changes[0].overrides:
        title = say("nothing has to be changed")
    else:
        several = is_search or len(changes) > 1
        title = say("what makes it fit, best first") if several else say("what makes it fit")
    lines = [Line(title, "heading")]
    shown = changes[:_SHOWN]
    flag_lines, cost_lines = _FLAG_LINES[len(shown)], 1 if len(shown) == _SHOWN else 2
    for number, one in enumerate(shown, 1):
        lines += wrapped(f"{number}. {sentence(one.text)}: {_figures(one)}", width, most=2, indent="   ")
        if one.changes:
            largest = max(one.changes, key=lambda change: RISKS.index(change.risk))
            lines += wrapped(f"   {largest.cost}", width, most=cost_lines, indent="   ")
        flags = wrapped(f"   {one.options}", width, "code", most=flag_lines + 1, indent="   ") if one.options else []
        lines += flags if len(flags) <= flag_lines else [Line("   `vramcast advise --write FILE` writes it", "code")]
    return Section(tuple(lines), least=len(lines), blank_before=True)


def _figures(one: Suggestion) -> str:
    parts = [f"{one.prediction.device_bytes / GIB:.1f} GiB"]
    if one.step_seconds is not None:
        parts.append(say("{seconds} a step", seconds=seconds(one.step_seconds)))
    return ", ".join(parts)


def _nothing_fits(advice: Advice, width: int) -> Section:
    one = advice.smallest
    texts = [(nothing_fits(advice), "bad")]
    if one is not None and one.overrides:
        texts.append((f"the least that was found: {one.text}, {format_gib(one.prediction.device_bytes)}", ""))
    card = advice.smallest_card
    if card is not None:
        texts.append((f"the smallest known card that holds it: {card.gpu.short_name} (--gpu {card.gpu.id})", ""))
    lines = [line for text, tone in texts for line in wrapped(text, width, tone, most=2)]
    return Section(tuple(lines), least=len(lines), blank_before=True)


def _time(time: StepTime | None, throughput: Throughput | None, width: int) -> Section:
    if time is None:
        return Section(())
    return Section(tuple(wrapped(time_headline(time, throughput), width, most=2)), blank_before=True)


def _assumed(notes: Iterable[Note], time: StepTime | None, width: int) -> Section:
    """A line for each kind of note; the rest is counted."""
    by_topic: dict[str, list[Note]] = {}
    for note in sorted(notes, key=lambda note: note.topic != _FILES):
        by_topic.setdefault(note.topic, []).append(note)
    lines: list[Line] = []
    least = 1
    for topic, group in list(by_topic.items())[:_NOTES]:
        if topic == _FILES:  # a line each for what would have been written and deleted
            lines += [line for note in group for line in wrapped(note.text, width, "aside", most=1)]
            least = len(lines)
            continue
        first = group[0]
        where = f"{first.where}: " if first.where else ""
        more = say(" (and {count} more)", count=len(group) - 1) if len(group) > 1 else ""
        lines += wrapped(
            f"{sentence(topic)}: {where}{sentence(first.text)}{more}", width, "aside", most=1 if lines else 2
        )
    if len(by_topic) > _NOTES:
        left = sum(len(group) for group in list(by_topic.values())[_NOTES:])
        lines.append(Line(say("and {count} more notes: --full", count=left), "aside"))
    if time is not None:
        lines += wrapped(source(time), width, "aside", most=1)
    return Section(tuple(lines), least=least)


def _footer(text: str, width: int) -> Section:
    return Section(tuple(wrapped(text, width, "aside", most=2)), least=1)
