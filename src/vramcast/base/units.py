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
    """24GiB, 24G, 24576MiB -> powers of two; 24GB -> 24 * 10**9; a bare number is bytes."""
    match = _SIZE.fullmatch(text)
    unit = match[2].lower() if match else ""
    if match is None or (unit and unit not in _UNITS):
        raise UsageError(f"cannot read {text!r} as a size; write it like 24GiB or 24576MiB")
    size = min(float(match[1]) * _UNITS[unit or "b"], 2.0 * LARGEST_BYTES)
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
