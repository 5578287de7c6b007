"""What was measured on a card and replaces the specification's guesses, as a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.base.input_files import parse_json, read_text
from vramcast.base.outputs import write_file
from vramcast.timing.costs.curves import KindModel
from vramcast.timing.settings import timing_settings

FORMAT = "vramcast-calibration/1"
_LARGEST_BYTES = 10_000_000
_LONGEST_SECONDS = 10.0
_REMEDY = "write one with `vramcast calibrate --out FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Curves by kind of kernel, and what the host takes to issue operators."""

    gpu: str
    """The card's id in gpus.toml, or its name."""
    source: str
    """Where and with which versions it was measured, in one line."""
    date: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, KindModel]
    host: Mapping[str, float] = field(default_factory=dict)
    """Seconds the host takes for one call, by kind of operator."""

    def save(self, path: Path) -> None:
        """Write it as JSON, one kind a line."""
        head = {
            "format": FORMAT, "gpu": self.gpu, "source": self.source, "date": self.date,
            "environment": dict(self.environment), "host": {name: round(value, 9) for name, value in self.host.items()},
        }  # fmt: skip
        lines = [f"{json.dumps(kind)}: {json.dumps(self.kinds[kind].to_data())}" for kind in sorted(self.kinds)]
        text = json.dumps(head, indent=1)[:-2] + ',\n "kinds": {\n' + ",\n".join(lines) + "\n}}\n"
        write_file(path, text.encode())

    def check_card(self, gpu: str) -> None:
        """Refuse another card: its kernels are not these."""
        if self.gpu != gpu:
            raise UsageError(f"the calibration is of {self.gpu}, not of {gpu}: leave it out, or calibrate {gpu}")

    @classmethod
    def load(cls, path: Path) -> Calibration:
        try:
            text = read_text(path, _LARGEST_BYTES)
        except UsageError as error:
            raise UsageError(f"calibration: {error}; {_REMEDY}") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, place: str) -> Calibration:
        try:
            data = parse_json(text, place)
        except UsageError as error:
            raise UsageError(f"calibration {error}; {_REMEDY}") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            actual = data.get("format") if isinstance(data, dict) else None
            raise UsageError(f"calibration {place}: its format is {actual!r}, not {FORMAT!r}; {_REMEDY}")
        try:
            return cls(
                gpu=str(data["gpu"]),
                source=str(data["source"]),
                date=str(data.get("date", "")),
                environment={str(key): str(value) for key, value in data.get("environment", {}).items()},
                kinds={str(kind): KindModel.from_data(model) for kind, model in data["kinds"].items()},
                host={str(name): _seconds(value) for name, value in data.get("host", {}).items()},
            )
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise UsageError(f"calibration {place}: {type(error).__name__} at {error}; {_REMEDY}") from error


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds <= _LONGEST_SECONDS:
        raise ValueError(f"{seconds:g} s for one call of an operator")
    return seconds


def own_place(gpu: str) -> Path:
    """Where `vramcast calibrate` keeps the calibration of a card, and predictions look for it."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "vramcast" / "calibrations" / f"{gpu}.json"


def find_calibration(gpu: str) -> Calibration | None:
    """For a card, by its id: the file that was chosen, the user's own, the package's, in this order."""
    named = timing_settings().calibration
    if named is not None:
        given = Calibration.load(named)
        if given.gpu == gpu:
            return given
    place = own_place(gpu)
    if place.is_file():
        return Calibration.load(place)
    resource: Any = files("vramcast.timing").joinpath("calibrations", f"{gpu}.json")
    if not resource.is_file():
        return None
    return Calibration.parse(resource.read_text(encoding="utf-8"), f"of {gpu} in the package")
