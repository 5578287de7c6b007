"""What times are predicted for: the host and the calibration that were chosen.

The command line chooses with `timed_for`; where nothing was chosen, the environment variables of docs/timing.md and
docs/calibrate.md count. A chosen setting holds for this process and its forks; programs on the virtual card do not see
it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

HOST_VARIABLE = "VRAMCAST_HOST"
CALIBRATION_VARIABLE = "VRAMCAST_CALIBRATION"


@dataclass(frozen=True, slots=True)
class TimingSettings:
    host: str = ""
    """As `parse_host` reads it; empty: that of the calibration, or an undisturbed one."""
    calibration: Path | None = None
    """A file that is asked before the user's own and the package's."""


_chosen = TimingSettings()


def timing_settings() -> TimingSettings:
    """Those in force."""
    named = os.environ.get(CALIBRATION_VARIABLE)
    return TimingSettings(
        host=_chosen.host or os.environ.get(HOST_VARIABLE, ""),
        calibration=_chosen.calibration or (Path(named) if named else None),
    )


@contextlib.contextmanager
def timed_for(*, host: str | None = None, calibration: Path | None = None) -> Iterator[None]:
    """Inside, times are predicted for these; what is None stays as it was."""
    global _chosen
    before = _chosen
    _chosen = replace(before, host=host or before.host, calibration=calibration or before.calibration)
    try:
        yield
    finally:
        _chosen = before
