"""Shell scripts, read and never run: syntax → variables, words, conditions → the commands that would run."""

from vramcast.launchers.shell.follow import Followed, ShellCommand, follow
from vramcast.launchers.shell.started import LARGEST_BYTES, follow_started

__all__ = ["LARGEST_BYTES", "Followed", "ShellCommand", "follow", "follow_started"]
