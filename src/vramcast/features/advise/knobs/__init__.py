"""One knob a file; of each at most one option is taken, and options of different knobs combine.

A new knob is a module with NAME and options(job, gpu), and its name in KNOBS (knob_names.py). One that is turned only
on request has why_not(job) too: what keeps it from being tried.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator
from typing import Any, cast

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.features.advise.knob_names import KNOBS, ON_REQUEST
from vramcast.features.advise.option import Knob, Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import Job


def knobs() -> Iterator[Knob]:
    for name in KNOBS:
        yield cast(Any, importlib.import_module(f"vramcast.features.advise.knobs.{name}"))


def check_pins(keep: Collection[str]) -> None:
    for name in keep:
        if name not in KNOBS:
            raise UsageError(f"--keep {name}: there is no such knob{nearest(name, list(KNOBS))}")


def options_for(job: Job, gpu: GpuSpec, keep: Collection[str], wanted: Collection[str] = ()) -> dict[str, list[Option]]:
    """Knob → its options, without those that are pinned; of those on request only what is wanted, which must be
    possible: who asks for it is not shown other figures in its place."""
    check_pins(keep)
    for knob in knobs():
        reason = cast(Any, knob).why_not(job) if knob.NAME in wanted else None
        if reason is not None:
            raise CannotPredict(f"--{knob.NAME} cannot be tried: {reason}")
    left_out = {*keep, *(name for name in ON_REQUEST if name not in wanted)}
    return {knob.NAME: options for knob in knobs() if knob.NAME not in left_out and (options := knob.options(job, gpu))}
