"""ultralytics: the YAML of `yolo train cfg=...` (args.yaml of a run) and the command. Its networks are not modelled,
and no other reader must take such a file for its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from vramcast.base.errors import CannotPredict
from vramcast.jobs.readers import Reading, Request
from vramcast.jobs.readers.documents import peek

NAME = "ultralytics config"
COMMAND = "yolo"

_OWN = ("imgsz", "close_mosaic", "hsv_h", "mosaic", "warmup_bias_lr", "nbs", "copy_paste", "overlap_mask")
_ENOUGH = 2


def recognises(path: Path) -> bool:
    keys = peek(path, ".yaml", ".yml")
    return sum(name in keys for name in _OWN) >= _ENOUGH


def read(path: Path, request: Request) -> Reading:
    refuse(str(path), peek(path, ".yaml", ".yml"))


def refuse_command(words: Sequence[str], where: str) -> None:
    """CannotPredict for `yolo detect train model=yolo11n.yaml imgsz=640`."""
    if words and words[0] == COMMAND:
        refuse(where, dict(word.split("=", 1) for word in words if "=" in word))


def _as_python(value: Any) -> str:
    """A value of the command line is text: a number is shown as one."""
    is_number = isinstance(value, str) and value.replace(".", "", 1).isdecimal()
    return value if is_number or value in ("True", "False") else repr(value)


def refuse(where: str, said: dict[str, Any]) -> NoReturn:
    given = {name: said[name] for name in ("data", "imgsz", "batch", "amp", "optimizer") if said.get(name) is not None}
    arguments = ", ".join(f"{name}={_as_python(value)}" for name, value in given.items())
    model = said.get("model") or "yolo11n.yaml"
    raise CannotPredict(
        f"{where}: model: {model}: ultralytics' networks and losses are not read from a config. Where it is installed, "
        f"`vramcast run train.py` predicts a script with the two lines `from ultralytics import YOLO` and "
        f"`YOLO({str(model)!r}).train({arguments})`"
    )
