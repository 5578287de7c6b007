"""Files of the user that a prediction would replace: without an overlay they stay, and the program reads back what it
believes it has written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vramcast import overlay
from vramcast.card.dispatch.unknown import caller
from vramcast.card.files.holes import beginning_of, name_of
from vramcast.card.files.safetensors_stubs import is_stub
from vramcast.overlay.writes import NO_DATA

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine

_SAVERS = ("safetensors", "transformers", "accelerate", "diffusers", "peft", "huggingface_hub")
"""Packages that save on a program's behalf: the note names the program's own line."""

SCRIPTED = b"A TorchScript module saved by a vramcast prediction, without its weights: number "
"""The beginning of such a file, before a number."""

PICKLED = "written_by_a_prediction_and_without_its_data"
"""The function of checkpoints.py that every pickle of ours names."""


class RealFiles:
    """One instance per virtual GPU."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.kept: dict[str, bytes] = {}
        """Path → what the program believes to be there, where a real file stays."""

    def must_stay(self, path: str) -> bool:
        """Whether there is a file that was not written by a prediction. A note says so."""
        if overlay.active() is not None or not os.path.exists(path) or _is_of_a_prediction(path):
            return False
        name = os.path.basename(path)
        text = f"{name} is left as it is: what would replace it has no data here"
        self._machine.note("checkpoint", text, caller(*_SAVERS))
        return True

    def note_use(self, f: Any) -> None:
        """In an overlay the file is gone with the run; elsewhere somebody may find it."""
        if overlay.active() is None and (name := name_of(f)) is not None:
            text = f"{os.path.basename(name)} holds no data: it cannot be used after this run"
            self._machine.note("checkpoint", text, caller(*_SAVERS))


def _is_of_a_prediction(path: str) -> bool:
    beginning = beginning_of(path)
    marks = (PICKLED.encode(), NO_DATA.encode(), SCRIPTED)
    return is_stub(beginning) or any(mark in beginning for mark in marks)
