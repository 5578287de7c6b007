"""Read a log of any size: all of it is looked at, and of a large one a part of every block is parsed."""

from __future__ import annotations

import re
from pathlib import Path

from vramcast.base.errors import UsageError
from vramcast.features.diagnose.logs.collect import EVALUATION, PROBLEM, SAVING, Collected
from vramcast.features.diagnose.logs.readers import (  # fmt: skip  # fmt: skip
    LineReader,
    csv_file,
    json_lines,
    line_readers,
    profiler_trace,
    trainer_state,
)
from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.text import WHAT_IS_READ, Block, Source, blocks, opened

WHOLE_BYTES = 1 << 20
"""This much is parsed line by line from the beginning."""
BUDGET_BYTES = 4 << 20
"""This much of a large log is parsed in all: the first part of every block, as large as its length allows."""
UNKNOWN_SHARE = 1 / 64
"""The share of each block that is parsed where the total size is not known: a pipe, a packed log."""
TAIL_BYTES = 1 << 17
_LONGEST_PARSED = 2000
"""Characters of a line; only objects of JSON and rows of tables are longer and worth it."""

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What is looked for everywhere, in the lines that are not parsed too.
_RARE = (b"heckpoint", b"valuat", b"alidat", b"raceback")
_EVENTS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (PROBLEM, r"traceback \(most recent|out of memory|loss[^,;|]{0,10}\bnan\b|\bkilled\b|nccl.*(?:error|timeout)"),
        (SAVING, r"\bsav(?:e|ed|ing)\b.*(?:checkpoint|model|state|weights)|checkpoint\w*.*\bsav(?:e|ed|ing)\b"),
        (EVALUATION, r"\b(?:running|start\w*|begin\w*)\W+(?:evaluation|validation)|\bvalidate step"),
        (EVALUATION, r"^\W*(?:evaluating|validating|validation)\b"),
    )
)
_MOST_OF_A_RARE_WORD = 4096
"""A word that stands in every line is not rare; after this many it is no longer looked for."""


def read_log(path: str | Path, into: Collected | None = None) -> Collected:
    """Read one log, into what other logs of the same run said already."""
    collected = into if into is not None else Collected()
    before = sum(collected.formats.values())
    collected.logs.append(str(path))
    with opened(path) as source:
        if profiler_trace.recognises(source.head):
            if str(path) == "-":
                raise UsageError("a profiler trace is read twice; give it as a file, not on standard input")
            for sample in profiler_trace.samples(str(path), source):
                _add(collected, sample, 0, profiler_trace.NAME)
        elif trainer_state.recognises(source.head):
            for sample in trainer_state.samples(source):
                _add(collected, sample, 0, trainer_state.NAME)
        else:
            _Lines(collected, source).read()
    if sum(collected.formats.values()) == before:
        raise UsageError(f"{source.name}: {_why_nothing(source, collected)}; {WHAT_IS_READ} is needed")
    return collected


def _why_nothing(source: Source, collected: Collected) -> str:
    first = source.head.decode(source.encoding, errors="replace").strip().splitlines()
    begins = f', which begins "{first[0][:60]}"' if first and first[0].isprintable() else ""
    return f"none of its {collected.lines:,} lines says anything about steps or times{begins}"


def _add(collected: Collected, sample: Sample, line: int, reader: str) -> None:
    collected.formats[reader] += 1
    collected.add(sample, line)


class _Lines:
    """A log that is lines."""

    def __init__(self, collected: Collected, source: Source) -> None:
        self._collected = collected
        self._source = source
        self._readers = self._choose()
        self._long_line_readers = [
            reader for reader in self._readers if reader.name in (json_lines.NAME, csv_file.NAME)
        ]
        self._rare = dict.fromkeys(_RARE, 0)
        size = source.size_bytes
        self._share = UNKNOWN_SHARE if size is None else min(1.0, BUDGET_BYTES / max(1, size))

    def _choose(self) -> list[LineReader]:
        first = self._source.head.split(b"\n", 1)[0].decode(self._source.encoding, errors="replace")
        names = csv_file.columns(first.lstrip("\ufeff").strip())
        if names is not None:
            return [LineReader(csv_file.NAME, csv_file.READS, csv_file.reader(names))]
        return list(line_readers())

    def read(self) -> None:
        for block in blocks(self._source):
            data = block.data
            collected = self._collected
            collected.bytes_read += len(data)
            collected.lines += block.line_ends + (block.is_last and not data.endswith(b"\n"))
            end = len(data) if block.offset < WHOLE_BYTES else _line_end(data, int(len(data) * self._share))
            self._parse(data[:end] if end < len(data) else data, block.first_line)
            tail = _line_end(data, max(end, len(data) - TAIL_BYTES)) if block.is_last else len(data)
            if end < tail:
                self._look_for_rare(block, end, tail)
            if tail < len(data):
                self._parse(data[tail:], block.first_line + data.count(b"\n", 0, tail))

    def _look_for_rare(self, block: Block, start: int, end: int) -> None:
        """Saving, evaluation and errors are found wherever they are."""
        data = block.data
        seen: set[int] = set()
        for word, count in self._rare.items():
            at, counted, number = start, 0, block.first_line
            while count < _MOST_OF_A_RARE_WORD:
                at = data.find(word, at, end)
                if at < 0:
                    break
                count += 1
                line_start = max(data.rfind(b"\n", start, at), data.rfind(b"\r", start, at), start - 1) + 1
                line_end = _line_end(data, at)
                number += data.count(b"\n", counted, line_start)
                counted = line_start
                if line_start not in seen:
                    self._parse(data[line_start:line_end], number)
                    seen.add(line_start)
                at = line_end
            self._rare[word] = count

    def _parse(self, data: bytes, number: int) -> None:
        collected = self._collected
        text = data.decode(self._source.encoding, errors="replace")
        if "\x1b" in text:
            text = _COLOURS.sub("", text)
        for row in text.split("\n"):
            for line in row.split("\r") if "\r" in row else (row,):
                line = line.rstrip()
                if line:
                    collected.lines_parsed += 1
                    self._parse_line(line, number)
            number += 1

    def _parse_line(self, line: str, number: int) -> None:
        collected = self._collected
        if "\ufffd" in line or "\x00" in line:
            collected.broken_lines += 1
            line = line.replace("\x00", "")
        is_long = len(line) > _LONGEST_PARSED
        for reader in self._long_line_readers if is_long else self._readers:
            sample = reader.parse(line)
            if sample is not None:
                _add(collected, sample, number, reader.name)
                return
        for kind, pattern in () if is_long else _EVENTS:
            if pattern.search(line):
                collected.add_event(kind, number, line.strip())
                return


def _line_end(data: bytes, at: int) -> int:
    """Just behind the line that `at` is in."""
    end = data.find(b"\n", at)
    back = data.find(b"\r", at, end if end >= 0 else len(data))
    if back >= 0 and back + 1 != end:
        return back + 1
    return end + 1 if end >= 0 else len(data)
