"""Times of day in log lines, as seconds from any origin; only differences are used."""

from __future__ import annotations

import datetime
import re
from functools import lru_cache

_DATED = re.compile(r"(\d{4})[-/](\d\d?)[-/](\d\d?)[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_TIME_ONLY = re.compile(r"(?:^|[\s\[(])(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?=[\s\])|,]|$)")
# A clock stands at the beginning of a line; further on it is time spent or left.
_LOOK_AT = 80
DAY_SECONDS = 86400.0


@lru_cache(maxsize=256)
def _day(year: str, month: str, day: str) -> float | None:
    try:
        return datetime.date(int(year), int(month), int(day)).toordinal() * DAY_SECONDS
    except ValueError:
        return None


def clock_of(line: str) -> tuple[float, float] | None:
    """Seconds and their resolution."""
    head = line[:_LOOK_AT]
    if head.count(":") < 2:
        return None
    match = _DATED.search(head)
    if match is not None:
        day = _day(match[1], match[2], match[3])
        if day is not None:
            return _seconds(day, match[4], match[5], match[6], match[7])
    match = _TIME_ONLY.search(head)
    if match is not None:
        return _seconds(0.0, match[1], match[2], match[3], match[4])
    return None


def _seconds(day: float, hours: str, minutes: str, seconds: str, fraction: str | None) -> tuple[float, float]:
    whole = day + int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    if not fraction:
        return whole, 1.0
    return whole + int(fraction) / 10 ** len(fraction), max(10.0 ** -len(fraction), 1e-3)


def duration(text: str) -> float | None:
    """Parse a duration as tqdm and rich write it: 00:07, 1:02:03."""
    parts = text.split(":")
    if not 2 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        return None
    total = 0
    for part in parts:
        total = total * 60 + int(part)
    return float(total)
