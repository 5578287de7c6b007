"""Lines of `key=value` and `key: value`, in any order, with units or without."""

from __future__ import annotations

import re

from vramcast.features.diagnose.logs.readers.pairs import add_clock, sample_of
from vramcast.features.diagnose.logs.readers.step_lines import rates
from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.vocabulary import number, whole

NAME = "key=value"
READS = "step, times, throughput and phases under any usual name (nanoGPT, detectron2, mmengine, own loops)"

_PAIR = re.compile(
    r"(?<![\w.])([A-Za-z_][\w/.\-]*(?:\([^()\s]*\))?)\s*[:=]\s*([-+]?[\d.,]*\d(?:[eE][-+]?\d+)?)"
    r"\s*([A-Za-z%µ]*)(?![\w/]*\s*[=:]|[\w/])"
)
_NO_SIGN = re.compile(
    r"\b(step|iter|iteration|time|step_time|dt|mfu)\s+([\d.,]*\d)\s*(ms|s|%)?(?![\w/]|:\d)", re.IGNORECASE
)
_OF_ALL = re.compile(
    r"\b(?:step|iter|iteration|batch|epoch)\w*\b[^\d|]{0,12}(?:\[\d+\]\s*)?\[?\s*(\d+)\s*/\s*(\d+)\]?", re.IGNORECASE
)


def parse(line: str) -> Sample | None:
    pairs = [(key, value, unit) for key, text, unit in _PAIR.findall(line) if (value := number(text)) is not None]
    pairs += [(key, value, unit) for key, text, unit in _NO_SIGN.findall(line) if (value := number(text)) is not None]
    pairs += rates(line)
    sample = sample_of(pairs, line) if pairs else None
    if sample is None:
        return None
    if "/" in line and sample.total_steps is None:
        of_all = _OF_ALL.search(line)
        if (
            of_all is not None
            and (sample.step is None or sample.step == int(of_all[1]))
            and "epoch" not in of_all[0].lower()
        ):
            sample.step, sample.total_steps = whole(number(of_all[1])), whole(number(of_all[2]))
            add_clock(sample, line)
    return sample
