"""Samples in a file, a line for each card: CSV or JSON lines. Lines are added and flushed one by one."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from vramcast.base.errors import UsageError
from vramcast.base.input_files import parse_json, read_text
from vramcast.features.watch.sample import BASES, CardSample, Sample

FIELDS = (
    "time", "seconds", "device", "card", "total_bytes", "used_bytes", "free_bytes", "watched_bytes", "basis",
    "busy_percent", "temperature_celsius", "predicted_bytes", "problem",
)  # fmt: skip
_NUMBERS = ("total_bytes", "used_bytes", "free_bytes", "watched_bytes")
_MAYBE = ("busy_percent", "temperature_celsius")
_LARGEST_BYTES = 80_000_000
"""About what a week of one card takes, at a sample a second."""
_LARGEST_SIZE = 2**50
_LONGEST_SECONDS = 1e9
_HIGHEST_READING = 10_000
_MOST_CARDS = 1_000
_LONGEST_NAME = 200


def rows(sample: Sample, predicted_bytes: int | None) -> list[dict[str, Any]]:
    """One for each card, and one for each that does not answer."""
    stamp = datetime.datetime.fromtimestamp(sample.time, datetime.UTC).isoformat(timespec="milliseconds")
    base = {"time": stamp, "seconds": round(sample.seconds, 3)}
    cards = [
        base
        | {"device": card.index, "card": card.name, "predicted_bytes": predicted_bytes, "problem": None}
        | {name: getattr(card, name) for name in (*_NUMBERS, *_MAYBE, "basis")}
        for card in sample.cards
    ]
    cards += [base | {"problem": problem} for problem in sample.problems]
    return [{name: row.get(name) for name in FIELDS} for row in cards]


class LogFile:
    """`said` is what the user must be told: that there was something in the file already."""

    def __init__(self, path: Path) -> None:
        if path.suffix not in (".csv", ".jsonl"):
            raise UsageError(f"--log {path}: the name must end in .csv or .jsonl, which says how it is written")
        if not path.resolve().parent.is_dir():
            raise UsageError(f"--log {path}: there is no folder {path.resolve().parent}")
        self.said = ""
        there = path.stat().st_size if path.is_file() else 0
        if there:
            n_samples = len(read_log(path).samples)
            self.said = f"{path} is there already, with {n_samples} samples; new ones are added at its end"
        try:
            self._file: TextIO = path.open("a", encoding="utf-8", newline="")
        except OSError as error:
            raise UsageError(f"--log {path}: cannot be written: {error.strerror}") from None
        self._is_csv = path.suffix == ".csv"
        if self._is_csv and not there:
            self._write(",".join(FIELDS) + "\n")

    def add(self, sample: Sample, predicted_bytes: int | None) -> None:
        for row in rows(sample, predicted_bytes):
            self._write(_csv_line(row) if self._is_csv else json.dumps(row) + "\n")

    def close(self) -> None:
        self._file.close()

    def _write(self, line: str) -> None:
        self._file.write(line)
        self._file.flush()


def _csv_line(row: dict[str, Any]) -> str:
    line = io.StringIO()
    csv.DictWriter(line, FIELDS, lineterminator="\n").writerow(row)
    return line.getvalue()


@dataclass(frozen=True, slots=True)
class Log:
    samples: tuple[Sample, ...]
    predicted_bytes: int | None
    """As the last line has it."""

    def last_run(self) -> tuple[Sample, ...]:
        """A log may hold several watches, each of which begins at zero again."""
        start = 0
        for i in range(1, len(self.samples)):
            if self.samples[i].seconds < self.samples[i - 1].seconds:
                start = i
        return self.samples[start:]


def read_log(path: Path) -> Log:
    """Read all samples of a log; a last line that was cut off is left out."""
    text = read_text(path, _LARGEST_BYTES)
    # Whoever wrote it may have been stopped in the middle of a line.
    lines = io.StringIO(text[: text.rfind("\n") + 1], newline="")
    samples: list[Sample] = []
    predicted: int | None = None
    last: _Row | None = None
    for row in _rows(path, lines):
        predicted = predicted if row.predicted_bytes is None else row.predicted_bytes
        if last is None or row.stamp != last.stamp:
            samples.append(Sample(time=row.time, seconds=row.seconds, cards=row.cards, problems=row.problems))
        else:
            before = samples[-1]
            samples[-1] = dataclasses.replace(
                before, cards=(*before.cards, *row.cards), problems=(*before.problems, *row.problems)
            )
        if len(samples[-1].cards) + len(samples[-1].problems) > _MOST_CARDS:
            raise UsageError(f"{path}: more than {_MOST_CARDS:,} cards at {row.stamp[0]}")
        last = row
    return Log(tuple(samples), predicted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One line of a log: a card at a moment, or one that does not answer."""

    stamp: tuple[str, Any]
    """As it is written; lines of one look at the cards have the same."""
    time: float
    seconds: float
    cards: tuple[CardSample, ...]
    problems: tuple[str, ...]
    predicted_bytes: int | None


def _rows(path: Path, lines: io.StringIO) -> Iterator[_Row]:
    raw_rows = _csv_rows(path, lines) if path.suffix == ".csv" else _json_rows(path, lines)
    for number, row in enumerate(raw_rows, 1):
        try:
            yield _row(row)
        except (ValueError, TypeError, KeyError, OverflowError, OSError) as error:
            raise UsageError(f"{path}: row {number} is not one of `vramcast watch` ({str(error)[:200]})") from None


def _csv_rows(path: Path, lines: io.StringIO) -> Iterator[dict[str, Any]]:
    reader = csv.reader(lines)
    try:
        head = next(reader, None)
        if head is not None and tuple(head) != FIELDS:
            raise UsageError(f"{path}: not a log of `vramcast watch`; its first line should be {','.join(FIELDS)}")
        for cells in reader:
            if cells:
                yield dict.fromkeys(FIELDS) | {name: cell or None for name, cell in zip(FIELDS, cells, strict=False)}
    except csv.Error as error:
        raise UsageError(f"{path}:{reader.line_num}: not a log of `vramcast watch`: {error}") from None


def _json_rows(path: Path, lines: io.StringIO) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line, str(path))
        except UsageError:
            row = None
        if not isinstance(row, dict) or not set(FIELDS) <= set(row):
            raise UsageError(f"{path}:{number}: not a line of `vramcast watch`")
        yield row


def _row(row: dict[str, Any]) -> _Row:
    seconds = float(row["seconds"])
    if not 0 <= seconds <= _LONGEST_SECONDS:
        raise ValueError("seconds")
    predicted = _whole(row, "predicted_bytes", _LARGEST_SIZE) if row["predicted_bytes"] else None
    return _Row(
        stamp=(str(row["time"]), row["seconds"]),
        time=datetime.datetime.fromisoformat(row["time"]).timestamp(),
        seconds=seconds,
        cards=() if row["problem"] else (_card(row),),
        problems=(str(row["problem"]),) if row["problem"] else (),
        predicted_bytes=predicted,
    )


def _card(row: dict[str, Any]) -> CardSample:
    sizes = {name: _whole(row, name, _LARGEST_SIZE) for name in _NUMBERS}
    if sizes["total_bytes"] <= 0 or row["basis"] not in tuple(BASES):
        raise ValueError("total_bytes or basis")
    busy, temperature = (None if row[name] is None else _whole(row, name, _HIGHEST_READING) for name in _MAYBE)
    return CardSample(
        index=_whole(row, "device", _MOST_CARDS),
        name=str(row["card"])[:_LONGEST_NAME],
        total_bytes=sizes["total_bytes"],
        used_bytes=sizes["used_bytes"],
        free_bytes=sizes["free_bytes"],
        watched_bytes=sizes["watched_bytes"],
        basis=str(row["basis"]),
        busy_percent=busy,
        temperature_celsius=temperature,
        processes_known=False,
    )


def _whole(row: dict[str, Any], name: str, most: int) -> int:
    value = int(row[name])
    if not 0 <= value <= most:
        raise ValueError(f"{name} is not from 0 to {most:,}")
    return value
