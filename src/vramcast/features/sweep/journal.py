"""Answers as lines of a CSV file, each written whole as soon as it is there.

A line is one `write` to the end of the file, so whatever ends the process leaves whole lines, and at most a last one
that is cut off; that one is removed when the sweep goes on. The file is locked while a sweep writes to it.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vramcast.base.errors import UsageError
from vramcast.features.sweep.answer import Answer
from vramcast.features.sweep.grid import Grid, Question

_FIGURES = tuple(field.name for field in dataclasses.fields(Answer))


def columns(grid: Grid) -> tuple[str, ...]:
    """The question, its settings, and the answer."""
    return ("id", "job", "gpu", *grid.settings, *_FIGURES[1:])


class Journal:
    """Open it with `with`; `answered` are the ids that are there already."""

    def __init__(self, path: Path, grid: Grid) -> None:
        self.path, self._columns = path, columns(grid)
        self.answered: set[str] = set()
        self._file = -1

    def __enter__(self) -> Self:
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error.strerror or error}") from None
        try:
            _lock(self._file, self.path)
            self._take_up()
        except BaseException:
            self._close()
            raise
        if hasattr(os, "register_at_fork"):  # a worker would hold the lock on when the sweep is killed
            os.register_at_fork(after_in_child=self._close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _take_up(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        lines = list(csv.reader(io.StringIO(whole.decode("utf-8", "replace"))))
        if lines and tuple(lines[0]) != self._columns:
            raise UsageError(
                f"{self.path}: it holds something else than answers to this grid (other settings, or another file); "
                "name another with --out"
            )
        if len(whole) < len(content):
            os.ftruncate(self._file, len(whole))
        if not lines:
            self._write(self._columns)
        self.answered = {line[0] for line in lines[1:]}

    def add(self, question: Question, answer: Answer) -> None:
        figures: Mapping[str, Any] = dataclasses.asdict(answer)
        settings = (_text(value) for value in question.changes.values())
        self._write((question.id, question.job, question.gpu, *settings, *(_text(figures[n]) for n in _FIGURES[1:])))
        self.answered.add(question.id)

    def _write(self, values: Sequence[str]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(values)
        data = line.getvalue().encode()
        if os.write(self._file, data) != len(data):
            raise UsageError(f"cannot write {self.path}: the disk is full")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return " ".join(str(value).split())  # a line is an answer


def _lock(file: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not there on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UsageError(f"{path}: another sweep is writing to it; wait for it, or name another file") from None


def write_parquet(journal: Path, target: Path) -> None:
    """The answers as one Parquet file, whole or not at all."""
    pyarrow_csv, parquet = import_parquet()
    table = pyarrow_csv.read_csv(journal)
    beside = target.with_name(f".{target.name}.part")
    parquet.write_table(table, beside)
    os.replace(beside, target)


def import_parquet() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow.csv"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("--out: Parquet files need pyarrow (pip install pyarrow); or name a .csv file") from None


def left_over(grid: Iterable[Question], answered: set[str]) -> list[Question]:
    """Questions that have no answer yet; one that stands twice in the grid is asked once."""
    waiting = {question.id: question for question in grid}
    return [question for id_, question in waiting.items() if id_ not in answered]
