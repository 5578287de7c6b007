"""Progress bars: tqdm's, Lightning's and rich's, one after another on a line, parted by carriage returns."""

from __future__ import annotations

import re

from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.clocks import duration
from vramcast.features.diagnose.logs.readers.pairs import sample_of
from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.vocabulary import RATE_UNITS, number, whole

NAME = "progress bars"
READS = "steps done and in all, time spent, it/s or s/it, and key=value or key: value behind them"

_TQDM = re.compile(
    r"^(?P<name>.*?):?\s*\d+%\|[^|]*\|\s*(?P<done>[\d.,]+[kMG]?)/(?P<total>[\d.,]+[kMG]?)\s*"
    r"\[(?P<spent>[\d:]+)<[^,\]]*,\s*(?P<rate>[\d.,]+|\?)\s*(?P<unit>[^\s,\]]*)(?P<more>[^\]]*)\]"
)
_RICH = re.compile(
    r"^(?P<name>.*?)\s+[━╸╺╶─╴-]{4,}\s+(?P<done>\d+)/(?P<total>\d+)\s+(?P<spent>\d+:\d\d:\d\d)\s+•\s+\S+\s+"
    r"(?P<rate>[\d.,]+)(?P<unit>it/s|s/it)(?P<more>.*)$"
)
_PAIR = re.compile(r"([A-Za-z_][\w/.\-]*)\s*[=:]\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*([A-Za-z%]+)?")
_SCALE = {"k": 1e3, "M": 1e6, "G": 1e9}
_DIGITS = re.compile(r"\d+")
_NOT_TRAINING = re.compile(
    r"valid|\beval|\btest|sanity|predict|download|load|\bmap\b|saving|tokeniz|fetch", re.IGNORECASE
)


def parse(line: str) -> Sample | None:
    if "/s" not in line and "s/" not in line:
        return None
    bar = _TQDM.match(line) if "%|" in line else _RICH.match(line) if "•" in line else None
    if bar is None or _NOT_TRAINING.search(bar["name"]):
        return None
    done, total = whole(_count(bar["done"])), whole(_count(bar["total"]))
    if done is None or not total:
        return None
    sample = sample_of(_pairs(bar["more"])) or Sample()
    sample.step, sample.total_steps = done, total
    sample.clock_seconds = duration(bar["spent"])
    # Bars of other lengths count other things; the epoch in the name does not matter.
    sample.track = f"{_DIGITS.sub('', bar['name'])[:40].strip()} of {total}"
    rate = number(bar["rate"])
    if rate:
        _add_rate(sample, rate, bar["unit"])
    return sample


def _add_rate(sample: Sample, rate: float, unit: str) -> None:
    if unit.startswith("s/"):
        sample.values.setdefault(q.STEP_SECONDS, rate)
    elif unit.endswith("/s"):
        quantity = RATE_UNITS.get(unit[:-2].lower())
        if quantity == q.STEPS_PER_SECOND:
            sample.values.setdefault(q.STEP_SECONDS, 1 / rate)
        elif quantity is not None:
            sample.values.setdefault(quantity, rate)


def _pairs(text: str) -> list[tuple[str, float, str]]:
    return [(key, value, unit) for key, number_text, unit in _PAIR.findall(text)
            if (value := number(number_text)) is not None]  # fmt: skip


def _count(text: str) -> float | None:
    scale = _SCALE.get(text[-1:], 1.0)
    value = number(text.rstrip("kMG"))
    return None if value is None else float(round(value * scale))
