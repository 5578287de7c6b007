"""How trainings are started: python, torchrun, accelerate launch, deepspeed, fabric run, and what precedes them."""

from vramcast.launchers.command import LAUNCHER_NAMES, Parts, read_command, take_apart
from vramcast.launchers.launch import Launch
from vramcast.launchers.prefixes import assignments, strip, without_plain_prefixes

__all__ = [
    "LAUNCHER_NAMES",
    "Launch",
    "Parts",
    "assignments",
    "read_command",
    "strip",
    "take_apart",
    "without_plain_prefixes",
]
