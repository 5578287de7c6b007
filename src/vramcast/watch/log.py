"""Samples in a file, a line for each card: CSV or JSON lines. Lines are added and flushed one by one."""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from vramcast.errors import UsageError
from vramcast.watch.sample import BASES, CardSample, Sample

FIELDS = (
    "time", "seconds", "device", "card", "total_bytes", "used_bytes", "free_bytes", "watched_bytes", "basis",
    "busy_percent", "temperature_celsius", "predicted_bytes", "problem",
)  # fmt: skip
_NUMBERS = ("total_bytes", "used_bytes", "free_bytes", "watched_bytes")
_MAYBE = ("busy_percent", "temperature_celsius")


def rows(sample: Sample, predicted_bytes: int | None) -> list[dict[str, Any]]:
    """One for each card, and one for each that does not answer."""
    stamp = datetime.datetime.fromtimestamp(sample.time, datetime.UTC).isoformat(timespec="milliseconds")
    base = {"time": stamp, "seconds": round(sample.seconds, 3)}
    found = [
        base
        | {"device": one.index, "card": one.name, "predicted_bytes": predicted_bytes, "problem": None}
        | {name: getattr(one, name) for name in (*_NUMBERS, *_MAYBE, "basis")}
        for one in sample.cards
    ]
    found += [base | {"problem": problem} for problem in sample.problems]
    return [{name: row.get(name) for name in FIELDS} for row in found]


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
    """All samples that were added to a log; what was cut off in its last line is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    lines = text.splitlines()
    if lines and not text.endswith("\n"):
        lines.pop()  # whoever wrote it was stopped in the middle
    found = list(_csv_rows(path, lines) if path.suffix == ".csv" else _json_rows(path, lines))
    predicted = next((int(row["predicted_bytes"]) for row in reversed(found) if row["predicted_bytes"]), None)
    return Log(tuple(_samples(path, found)), predicted)


def _csv_rows(path: Path, lines: list[str]) -> Iterator[dict[str, Any]]:
    reader = csv.DictReader(lines)
    if lines and tuple(reader.fieldnames or ()) != FIELDS:
        raise UsageError(f"{path}: not a log of `vramcast watch`; its first line should be {','.join(FIELDS)}")
    for row in reader:
        yield {name: value or None for name, value in row.items() if isinstance(name, str)}


def _json_rows(path: Path, lines: list[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not set(FIELDS) <= set(row):
            raise UsageError(f"{path}:{number}: not a line of `vramcast watch`")
        yield row


def _samples(path: Path, found: Iterable[dict[str, Any]]) -> Iterator[Sample]:
    stamp: Any = None
    cards: list[CardSample] = []
    problems: list[str] = []
    seconds = time = 0.0
    for number, row in enumerate(found, 1):
        try:
            if (row["time"], row["seconds"]) != stamp:
                if stamp is not None:
                    yield Sample(time=time, seconds=seconds, cards=tuple(cards), problems=tuple(problems))
                stamp, cards, problems = (row["time"], row["seconds"]), [], []
                seconds = float(row["seconds"])
                time = datetime.datetime.fromisoformat(row["time"]).timestamp()
            if row["problem"]:
                problems.append(str(row["problem"]))
            else:
                cards.append(_card(row))
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{path}: row {number} is not one of `vramcast watch` ({error})") from None
    if stamp is not None:
        yield Sample(time=time, seconds=seconds, cards=tuple(cards), problems=tuple(problems))


def _card(row: dict[str, Any]) -> CardSample:
    sizes = {name: int(row[name]) for name in _NUMBERS}
    if sizes["total_bytes"] <= 0 or row["basis"] not in BASES:
        raise ValueError("total_bytes or basis")
    busy, temperature = (None if row[name] is None else int(row[name]) for name in _MAYBE)
    return CardSample(
        index=int(row["device"]),
        name=str(row["card"]),
        total_bytes=sizes["total_bytes"],
        used_bytes=sizes["used_bytes"],
        free_bytes=sizes["free_bytes"],
        watched_bytes=sizes["watched_bytes"],
        basis=str(row["basis"]),
        busy_percent=busy,
        temperature_celsius=temperature,
        processes_known=False,
    )
