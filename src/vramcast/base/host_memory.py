"""Memory of the computer that vramcast runs on."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def available_bytes() -> int | None:
    """What programs can still take; None where the system does not tell."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    fields = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return int(fields[1]) * 1024 if fields else None
