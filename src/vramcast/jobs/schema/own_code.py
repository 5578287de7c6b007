"""A job that is said in Python."""

from __future__ import annotations

from vramcast.jobs.fields import Arguments, FactoryName, Section


class Step(Section):
    """A training step of your own, for a job that components and a loss cannot describe."""

    factory: FactoryName
    """A Python function that builds everything on "cuda" and returns a function which makes one training step."""
    arguments: Arguments = {}
    """Its keyword arguments. The sizes it takes by name are handed to it too."""


class Script(Section):
    """A training script that is run as it is, as `vramcast run` does. `script: train.py` alone is enough. In a file it
    needs --allow-code."""

    path: str
    """The script."""
    arguments: list[str | int | float] = []
    """Its own arguments, as on the command line."""
