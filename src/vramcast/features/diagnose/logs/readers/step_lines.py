"""Lines of a step whose fields are parted by bars: `step 950/8880 | loss 0.031 | 0.5 samples/s | data_time=0.1ms`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vramcast.features.diagnose.logs.readers.pairs import add_clock, sample_of
from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.vocabulary import RATE_UNITS, number, whole

NAME = "lines of steps"
READS = (
    "step and steps in all, N samples/s (images, tokens, it, ...), key=value or key: value with its unit; Megatron too"
)

_STEP = re.compile(
    r"\b(?:global[_ ]?step|step|iter(?:ation)?|batch|it)s?\b\s*[:=#\[]?\s*(\d[\d,]*)(?:\s*(?:/|of)\s*(\d[\d,]*))?",
    re.IGNORECASE,
)
_RATE = re.compile(r"([\d.,]+(?:[eE][-+]?\d+)?)\s*([A-Za-z]+)\s*(?:/|\bper\s)\s*s(?:ec(?:ond)?)?\b(?!/)", re.IGNORECASE)
_SECONDS_PER = re.compile(r"([\d.,]+)\s*(ms|s|sec)\s*/\s*(it|iter|step|batch)\b", re.IGNORECASE)
_PAIR = re.compile(
    r"^\s*([A-Za-z_][\w/.\- ]*(?:\([^()]*\))?)\s*[:=]\s*([-+]?[\d.,]+(?:[eE][-+]?\d+)?)\s*([A-Za-z%µ]*)\s*$"
)


def parse(line: str) -> Sample | None:
    if "|" not in line:
        return None
    step = _STEP.search(line)
    if step is None:
        return None
    sample = sample_of(_pairs(line)) or Sample()
    sample.step = whole(number(step[1]))
    sample.total_steps = whole(number(step[2])) if step[2] else None
    if sample.step is None:
        return None
    add_clock(sample, line)
    return sample


def _pairs(line: str) -> Iterator[tuple[str, float, str]]:
    for part in line.split("|"):
        pair = _PAIR.match(part)
        if pair is not None:
            value = number(pair[2])
            if value is not None:
                yield pair[1], value, pair[3]
            continue
        yield from rates(part)


def rates(text: str) -> Iterator[tuple[str, float, str]]:
    """ "0.5 samples/s" and "1.2 s/it"."""
    if "/" not in text and " per " not in text:
        return
    per = _SECONDS_PER.search(text)
    if per is not None:
        value = number(per[1])
        if value is not None:
            yield "step_time", value, per[2]
        return
    for text_value, what in _RATE.findall(text):
        quantity = RATE_UNITS.get(what.lower())
        value = number(text_value)
        if quantity is not None and value is not None:
            yield quantity, value, ""
