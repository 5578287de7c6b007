"""Errors that vramcast raises on purpose, each with the exit code the command line ends with."""

from __future__ import annotations


class VramcastError(Exception):
    """Base of every error that is an answer to the user rather than a defect."""

    exit_code: int = 2


class UsageError(VramcastError):
    """The request itself is wrong: an unknown option, key, file or value."""

    exit_code = 2


class CannotPredict(VramcastError):
    """The request is well formed, but an honest number cannot be given for it."""

    exit_code = 3
