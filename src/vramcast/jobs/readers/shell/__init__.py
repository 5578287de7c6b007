"""Shell scripts, read and never run: syntax → variables, words, conditions → the commands that would run."""

from vramcast.jobs.readers.shell.follow import Followed, ShellCommand, follow

__all__ = ["Followed", "ShellCommand", "follow"]
