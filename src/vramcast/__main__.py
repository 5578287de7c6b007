"""`python -m vramcast` is the same as `vramcast`."""

from vramcast.cli.main import entry

entry()
