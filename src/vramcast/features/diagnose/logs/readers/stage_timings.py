"""Timings that a script prints of its own stages: a name, a time, often a share, one a line."""

from __future__ import annotations

import re

from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.vocabulary import TIME_UNITS, number

NAME = "stage timings"
READS = (
    "`name : 1805.28ms (50.0%)`, also as rows of a Markdown table; indented or bulleted stages lie inside the one above"
)

_ROW = re.compile(
    r"^(?P<indent>[\s│├└─|*•-]*)(?P<name>[^\s│├└─|:=*•-][^:=|]*?)[\s*]*(?:[:=]|\.{3,}|\|)[\s*]*~?(?P<value>[\d.,]*\d)\s*"
    r"(?P<unit>ns|us|µs|ms|msec|milliseconds|secs?|seconds|s)\b[\s*]*(?:[(\[|]?\s*~?[\d.]+\s*%\s*[)\]|]?)?[\s*|]*$",
    re.IGNORECASE,
)
_LONGEST_NAME = 60
_LONGEST_LINE = 200
_UNIT_WITHIN = 28
_STEP_OR_CLOCK = re.compile(r"\d{4}-\d\d-\d\d|^(?:step|iter|epoch)\b", re.IGNORECASE)


def parse(line: str) -> Sample | None:
    if len(line) > _LONGEST_LINE or "s" not in line[-_UNIT_WITHIN:].lower():
        return None
    row = _ROW.match(line)
    if row is None:
        return None
    value = number(row["value"])
    name = " ".join(row["name"].split()).strip("*` ")
    if value is None or not name or len(name) > _LONGEST_NAME or _STEP_OR_CLOCK.search(name):
        return None
    depth = len(row["indent"].replace("|", "").replace("**", "").expandtabs(4).lstrip("\n")) if row["indent"] else 0
    bullet = any(mark in row["indent"] for mark in "-├└•")
    return Sample(
        stage=name,
        stage_seconds=value * TIME_UNITS[row["unit"].lower()],
        stage_depth=depth if bullet or depth > 1 else 0,
    )
