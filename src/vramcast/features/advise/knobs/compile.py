"""The model compiled with torch.compile, or not. Only on request: every trace takes as long as compiling."""

from __future__ import annotations

from vramcast.features.advise.option import Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.compiling import why_not_compiled
from vramcast.jobs.schema import Job

NAME = "compile"

_FASTER = 0.8
_SMALLER = 0.8
"""Rules of thumb until there is a trace."""


def why_not(job: Job) -> str | None:
    from vramcast.card.compiled import compiler

    if job.task != "training" or job.script is not None or job.step is not None or not job.components:
        return "this takes a training job that describes its model; a script is compiled where it calls torch.compile"
    return compiler.why_not() or why_not_compiled(job)


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    if why_not(job) is not None:
        return []
    if job.torch_compile:
        cost = "nothing is compiled at the start; most models are slower"
        return [_option("no torch.compile", False, cost, 1 / _FASTER, 1 / _SMALLER)]
    cost = "the first steps take a minute or more, and so does each new shape"
    return [_option("torch.compile", True, cost, _FASTER, _SMALLER)]


def _option(text: str, compiled: bool, cost: str, time: float, guess: float) -> Option:
    changes = {"torch_compile": compiled}
    return Option(knob=NAME, text=text, changes=changes, cost=cost, time=time, traced=True, guess=guess)
