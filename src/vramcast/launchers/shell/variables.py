"""The variables of a shell script, and what of them is not known."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from vramcast.base.errors import UsageError

LONGEST_SHOWN = 60
MOST_WORDS = 10_000
_LONGEST_VALUE = 65_536

NOT_SET = "it is not set in the script"
WITHOUT_ARGUMENTS = "the script is started without arguments"
UNKNOWN = re.compile("\ue000(\\d{1,6})\ue001")
"""Stands for a value that is not known; the number says which."""
_ALWAYS_SET = re.compile(
    r"HOME|PATH|USER|LOGNAME|PWD|OLDPWD|HOSTNAME|SHELL|TERM|LANG|RANDOM|SECONDS|LINENO|EPOCHSECONDS|UID|EUID|PPID|"
    r"BASH\w*|SLURM_\w*|PBS_\w*|LSB_\w*|MASTER_ADDR|MASTER_PORT|RANK|LOCAL_RANK|WORLD_SIZE|NODE_RANK"
)
"""Variables that somebody else sets: their value is not in the script."""

Value = str | list[str]


@dataclass(slots=True)
class State:
    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    unset: set[str] = field(default_factory=set)
    """Variables that the script itself has unset, whatever the environment has."""
    read_from: str = ""
    """Another file that was read in, which may have set any variable."""

    def copy(self) -> State:
        return State(dict(self.variables), set(self.exported), set(self.unset), self.read_from)


class Variables:
    """What they are while the script is followed, line by line."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._state = State()
        self._arguments: list[list[str]] = []
        """Arguments of the functions that are being run."""
        self._unknowns: list[tuple[str, str]] = []
        self._assumed: dict[str, None] = {}
        self.line = 1

    def _set(self, name: str, value: Value) -> None:
        size = len(value) if isinstance(value, str) else sum(len(item) + 1 for item in value)
        if size > _LONGEST_VALUE:
            raise UsageError(f"{self._where}:{self.line}: {name} grows beyond {_LONGEST_VALUE:,} characters")
        self._state.variables[name] = value
        self._state.unset.discard(name)

    def _unknown(self, spelt: str, why: str) -> str:
        self._unknowns.append((spelt[:LONGEST_SHOWN], why))
        if len(self._unknowns) > MOST_WORDS:
            raise UsageError(f"{self._where}:{self.line}: too much of the script cannot be known")
        return f"\ue000{len(self._unknowns) - 1}\ue001"

    def _spelt(self, word: str) -> str:
        def spelling(match: re.Match[str]) -> str:
            number = int(match[1])
            return self._unknowns[number][0] if number < len(self._unknowns) else ""

        return UNKNOWN.sub(spelling, word)

    def _unset_as_empty(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            number = int(match[1])
            is_unset = number < len(self._unknowns) and self._unknowns[number][1] == NOT_SET
            return "" if is_unset else match[0]

        return UNKNOWN.sub(value, text)

    def _lookup(self, name: str) -> Value | None:
        """None: it is not set."""
        if name in self._state.variables:
            return self._state.variables[name]
        if name.isdigit():
            arguments = self._arguments[-1] if self._arguments else []
            if name == "0":
                return self._unknown("$0", "it is the name of the script")
            place = int(name[:6]) - 1
            if place < len(arguments):
                return arguments[place]
            if not self._arguments:
                self._assumed[WITHOUT_ARGUMENTS] = None
            return None
        if name in self._state.unset:
            return None
        if _ALWAYS_SET.fullmatch(name):
            return self._unknown(f"${name}", "it is set by whoever starts the script")
        if self._state.read_from:
            return self._unknown(f"${name}", f"{self._state.read_from}, which the script reads in, may set it")
        self._assumed[f"{name} is not set in the environment"] = None
        return None

    def is_set(self, name: str) -> bool:
        return self._lookup(name) is not None
