"""A job that Python code makes: "package.module:attribute" or "file.py:attribute"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramcast import overlay
from vramcast.base.errors import UsageError, VramcastError
from vramcast.base.factories import load_attribute
from vramcast.jobs.readers import Reading
from vramcast.jobs.schema import Job
from vramcast.jobs.validation import make_job

NAME = "Python function"


def is_factory(argument: str) -> bool:
    module, _, attribute = argument.rpartition(":")
    return bool(module) and attribute.replace(".", "").isidentifier()


def read_factory(argument: str) -> Reading:
    """The attribute is a Job, the same as a dict, or a function without arguments that returns one."""
    with overlay.protected():
        made: Any = load_attribute(argument)
        if callable(made) and not isinstance(made, Job):
            try:
                made = made()
            except VramcastError:
                raise
            except Exception as error:
                raise UsageError(f"{argument} failed: {type(error).__name__}: {error}") from error
    if isinstance(made, Job):
        return Reading(job=made, recognised_as=NAME)
    if isinstance(made, Mapping):
        return Reading(job=make_job(made, argument), recognised_as=NAME)
    raise UsageError(
        f"{argument} gives {type(made).__name__}; a vramcast.Job or the same as a dict is needed, e.g. "
        '{"components": {"model": {"factory": "package.module:build"}}, "inputs": ...}'
    )
