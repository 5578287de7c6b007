"""The command that starts a training, taken apart as text: launcher, script and flags. Nothing is run."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.launchers import Parts, assignments, strip, take_apart

_VARIABLE = re.compile(r"\$(?:\{\w+[^}]*\}|\w+)")
_OF_RENDEZVOUS = (
    "master_port", "master_addr", "main_process_port", "main_process_ip", "machine_rank", "node_rank", "rdzv_id",
    "rdzv_endpoint", "rdzv_backend", "rdzv_conf", "log_dir", "max_restarts",
)  # fmt: skip
"""Options of a launcher that say how its processes find each other."""
_WITH_VERBS = ("trl", "swift")
"""Commands whose first word says what is trained."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Command:
    launcher: str = ""
    """python, torchrun, accelerate, deepspeed, trl, or nothing."""
    launcher_flags: dict[str, Any] = field(default_factory=dict)
    script: str = ""
    """The script's name without folder and .py; trl's verb."""
    flags: dict[str, Any] = field(default_factory=dict)


def split_environment(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The variables that are set for a command, and the command without them and without nohup, uv run and the like."""
    try:
        stripped = strip(words)
    except UsageError:  # an option of such a prefix that is not known
        return assignments(words)
    return stripped.environment, stripped.words


def parse_command(
    words: Sequence[str], where: str, unknown: Mapping[str, str] | None = None, harmless: Collection[str] = ()
) -> Command:
    """`words` may also be the flags alone. `unknown`: what in them has no known value → why; UsageError, but for the
    flags that are `harmless`."""
    parts = _parts(words)
    if parts is None:
        start = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
        return Command(flags=_known(flags_of(words[start:]), where, unknown, harmless))
    launcher, head, target, rest = parts
    return Command(
        launcher,
        _known(head, where, unknown, _OF_RENDEZVOUS),
        script_name(target),
        _known(flags_of(rest), where, unknown, harmless),
    )


def _parts(words: Sequence[str]) -> tuple[str, dict[str, Any], str, Sequence[str]] | None:
    """Launcher, its flags, the script or module, and what follows it. None: flags alone."""
    try:
        parts = take_apart(words)
    except UsageError:  # an option that the launcher does not have: the script is looked for all the same
        parts = None
    if parts is not None and not parts.runs_any_program:
        return parts.name, launcher_flags(parts), parts.target, parts.arguments
    if words and words[0] in _WITH_VERBS:
        at: int | None = min(1, len(words) - 1)
    else:
        at = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    if at is None:
        return None
    return (words[0] if at else ""), flags_of(words[1:at]), words[at], words[at + 1 :]


def launcher_flags(parts: Parts) -> dict[str, Any]:
    return {name: value if value is True else plain_value(str(value)) for name, value in parts.options.items()}


def script_name(target: str) -> str:
    """A script or module without its folder and its ending."""
    return target.replace("\\", "/").rpartition("/")[2].removesuffix(".py")


def flags_of(words: Sequence[str]) -> dict[str, Any]:
    """--name value, --name=value, --name alone for true, --name a b c for a list."""
    flags: dict[str, Any] = {}
    name, values = "", list[str]()

    def keep() -> None:
        if name:
            flags[name] = (
                True if not values else plain_value(values[0]) if len(values) == 1 else [plain_value(v) for v in values]
            )

    for word in words:
        if word.startswith("--") and len(word) > 2:
            keep()
            name, equals, value = word[2:].partition("=")
            name, values = name.replace("-", "_"), [value] if equals else []
        else:
            values.append(word)
    keep()
    return flags


def _known(
    flags: dict[str, Any], where: str, unknown: Mapping[str, str] | None, harmless: Collection[str]
) -> dict[str, Any]:
    for name, value in flags.items():
        if name in harmless:
            continue
        for spelt, why in (unknown or {}).items():
            if spelt in str(value):
                raise UsageError(f"{where}: --{name}: {spelt}: {why}; write the value instead")
        if unknown is None and (variable := _VARIABLE.search(str(value))):
            raise UsageError(f"{where}: --{name}: {variable[0]} has no value: write it instead")
    return flags


def plain_value(word: str) -> Any:
    lower = word.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if lower in ("none", "null"):
        return None
    if _NUMBER.fullmatch(word) and len(word) < 40:
        return int(word) if word.lstrip("+-").isdigit() else float(word)
    if word.startswith("{"):
        try:
            return json.loads(word)
        except (ValueError, RecursionError):
            return word
    return word
