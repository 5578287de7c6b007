"""Sizes as people write them. Inside vramcast a size is an int of bytes; text exists only at the edges."""

from __future__ import annotations

import re

from vramcast.base.errors import UsageError

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4
LARGEST_BYTES = 1024 * TIB
"""Above this a size is a typo."""
_MOST_GIB, _LEAST_BYTES = 1024, MIB
"""A number without a unit is GiB up to the first, as on a card's box, and bytes from the second."""

_UNITS = {
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    # A bare letter is what nvidia-smi, Slurm and most people mean by it: powers of two.
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": TIB,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """24GiB, 24G, 24576MiB -> powers of two; 24GB -> 24 * 10**9; a bare 24 is GiB, a bare 25769803776 bytes."""
    match = _SIZE.fullmatch(text)
    unit = match[2].lower() if match else ""
    if match is None or (unit and unit not in _UNITS):
        raise UsageError(f"cannot read {text!r} as a size; write it like 24GiB or 24576MiB")
    number = float(match[1])
    if not unit and _MOST_GIB < number < _LEAST_BYTES:
        raise UsageError(f"{text.strip()} of what? Write {text.strip()}MiB, or a size like 24GiB")
    unit = unit or ("gib" if number <= _MOST_GIB else "b")
    size = min(number * _UNITS[unit], 2.0 * LARGEST_BYTES)
    if round(size) <= 0:
        raise UsageError(f"a size must be above zero, not {text!r}")
    if size > LARGEST_BYTES:
        raise UsageError(f"{text[:40]!r} is far too large for a size: at most {format_size(LARGEST_BYTES)} is possible")
    return round(size)


def format_gib(size_bytes: int, digits: int = 2) -> str:
    return f"{size_bytes / GIB:.{digits}f} GiB"


def format_size(size_bytes: int) -> str:
    """Format in the unit that keeps the number readable: 31.24 GiB, 512.0 MiB, 4.0 KiB, 12 B."""
    magnitude = abs(size_bytes)
    if magnitude >= GIB:
        return f"{size_bytes / GIB:.2f} GiB"
    if magnitude >= MIB:
        return f"{size_bytes / MIB:.1f} MiB"
    if magnitude >= KIB:
        return f"{size_bytes / KIB:.1f} KiB"
    return f"{size_bytes} B"
