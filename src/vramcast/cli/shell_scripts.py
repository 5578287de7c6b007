"""`vramcast run bash train.sh`: the command that the script trains with is run in its place."""

from __future__ import annotations

import argparse
import os
import shlex

from vramcast import overlay
from vramcast.base.errors import UsageError
from vramcast.launchers import shell

_FILES = ("save", "html", "chrome", "export")


def without_shell(words: list[str], args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The command that a shell script trains with, and what to say of it; any other command as it is. The script may
    go to another folder first; options of ours name files from where they were typed."""
    if not shell.is_shell_command(words):
        return words, []
    active = overlay.active()
    if active is not None and not active.covers_child_processes():
        raise UsageError(
            f"{shlex.join(words)} is a shell script, and what it writes cannot be kept off your files here: write the "
            "python command that it starts in the end, e.g. vramcast run python train.py"
        )
    chosen, started = shell.training_of(words)
    for name in _FILES:
        if (value := getattr(args, name)) is not None:
            setattr(args, name, type(value)(os.path.abspath(value)))
    os.chdir(chosen.folder)
    text = f"{shlex.join(words)} starts {shlex.join(chosen.words)}"
    others = [shlex.join(each.words) for each in started if each is not chosen]
    if others:
        text += f"; {len(others)} more commands were not run: {'; '.join(others)}"
    return chosen.assigned, [text]
