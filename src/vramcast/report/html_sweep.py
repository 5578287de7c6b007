"""The answers of a sweep as an HTML report: what fits where, memory against speed on each card, every line."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from vramcast.base.language import say, sentence
from vramcast.gpus import GpuSpec, find_gpu
from vramcast.report.html_front import Way, front_picture
from vramcast.report.html_parts import data, section, table
from vramcast.report.html_report import FOOTER, Report
from vramcast.report.wording import rate, seconds

_FITS = "fits"
_FIGURES = ("peak_allocated_bytes", "peak_reserved_bytes", "device_bytes", "step_seconds", "samples_per_second")
_MOST_ROWS = 2000

Answers = Sequence[Mapping[str, str]]


def read_answers(path: Path) -> Answers:
    """The lines of a sweep's CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def sweep_report(answers: Answers, name: str) -> Report:
    verdicts = Counter(answer["verdict"] for answer in answers)
    settings = _settings(answers)
    title = say("{fits} of {count} fit", fits=verdicts[_FITS], count=len(answers))
    body = section(say("What fits where"), _what_fits(answers))
    for gpu in dict.fromkeys(answer["gpu"] for answer in answers):
        card = find_gpu(gpu)
        ways = _ways(answers, gpu, settings)
        body += section(
            say("Memory against speed: {card}", card=card.short_name), front_picture(ways, card.total_memory_bytes)
        )
    body += section(say("Every answer"), _every_answer(answers, settings))
    return Report(name, title, None, "", body, escape(say(FOOTER)))


def _settings(answers: Answers) -> list[str]:
    """The columns that tell the questions apart."""
    known = ("id", "gpu", "verdict", "message", *_FIGURES)
    return [name for name in (answers[0] if answers else ()) if name not in known]


def _label(answer: Mapping[str, str], settings: Sequence[str]) -> str:
    return ", ".join(answer[name] if name == "job" else f"{name}={answer[name]}" for name in settings if answer[name])


def _what_fits(answers: Answers) -> str:
    """Jobs × cards: how many of their questions fit."""
    cards = list(dict.fromkeys(answer["gpu"] for answer in answers))
    rows = []
    for job in dict.fromkeys(answer["job"] for answer in answers):
        cells = []
        for card in cards:
            own = [answer["verdict"] for answer in answers if answer["job"] == job and answer["gpu"] == card]
            cells.append(f"{own.count(_FITS)} / {len(own)}")
        rows.append((escape(job), *cells))
    return table((say("job"), *(_card(card).short_name for card in cards)), rows)


def _card(name: str) -> GpuSpec:
    return find_gpu(name)


def _ways(answers: Answers, gpu: str, settings: Sequence[str]) -> list[Way]:
    return [
        Way(_label(one, settings), int(one["device_bytes"]), float(one["samples_per_second"]), one["verdict"] == _FITS)
        for one in answers
        if one["gpu"] == gpu and one["device_bytes"] and one["samples_per_second"]
    ]


def _every_answer(answers: Answers, settings: Sequence[str]) -> str:
    rows = [
        (
            *(escape(one[name]) for name in settings),
            escape(one["gpu"]),
            escape(sentence(one["verdict"])),
            data(int(one["device_bytes"]), gib=True) if one["device_bytes"] else escape(sentence(one["message"])),
            seconds(float(one["step_seconds"])) if one["step_seconds"] else "–",
            rate(float(one["samples_per_second"])) if one["samples_per_second"] else "–",
        )
        for one in answers[:_MOST_ROWS]
    ]
    headings = (*settings, say("card"), say("verdict"), say("on the card"), say("a step"), sentence("samples/s"))
    rest = len(answers) - _MOST_ROWS
    more = f"<p>{escape(say('{count} more', count=rest))}</p>" if rest > 0 else ""
    return table(headings, rows, text_columns=len(settings) + 2) + more
