"""Training scripts as text, for the tests that run them."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vramcast.memory import Prediction
from vramcast.scripts.runner import run_script

Run = Callable[..., Prediction]


def runner(folder: Path) -> Run:
    """Runs a script's text in a folder."""

    def run(text: str, *argv: str, **options: Any) -> Prediction:
        path = folder / "train.py"
        path.write_text(textwrap.dedent(text))
        return run_script(os.fspath(path), argv, gpu="rtx-4090", **options)

    return run


def notes(prediction: Prediction, topic: str) -> list[str]:
    return [note.text for note in prediction.notes if note.topic == topic]
