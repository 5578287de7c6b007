"""What may stand in front of a command without changing what is run: variables, nohup, time, uv run, ..."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.base.errors import UsageError
from vramcast.launchers.options import OptionTable, names

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Prefix:
    table: OptionTable
    positionals: int = 0
    """Words of its own after its options: the duration of timeout."""
    verb: str = ""
    """As `run` in `uv run`."""
    is_environment: bool = False
    """It would make a Python environment of its own, which vramcast does not."""


def _simple(name: str, with_value: str = "", flags: str = "", positionals: int = 0, **short: str) -> _Prefix:
    return _Prefix(OptionTable(name, names(with_value), names(flags), short), positionals)


def _environment(name: str, with_value: str = "", flags: str = "", **short: str) -> _Prefix:
    table = OptionTable(f"{name} run", names(with_value), names(flags), short)
    return _Prefix(table, verb="run", is_environment=True)


_UV_WITH_VALUE = """
    with with_editable with_requirements extra no_extra group no_group only_group env_file package python index
    default_index index_url extra_index_url find_links upgrade_package reinstall_package index_strategy keyring_provider
    resolution prerelease fork_strategy config_setting no_build_isolation_package exclude_newer link_mode cache_dir
    refresh_package no_build_package no_binary_package no_sources_package python_platform color allow_insecure_host
    project config_file directory module
"""
_UV_FLAGS = """
    all_extras all_groups no_default_groups dev no_dev only_dev no_editable inexact exact isolated active no_sync locked
    frozen no_project all_packages no_index upgrade no_sources reinstall compile_bytecode no_build no_binary no_cache
    no_build_isolation refresh managed_python no_managed_python no_python_downloads offline quiet verbose native_tls
    no_progress no_config no_env_file script gui_script
"""
_UV = OptionTable(
    "uv run", names(_UV_WITH_VALUE), names(_UV_FLAGS),
    {"w": "with", "p": "python", "i": "index_url", "f": "find_links", "P": "upgrade_package", "U": "upgrade",
     "C": "config_setting", "n": "no_cache", "q": "quiet", "v": "verbose", "s": "script", "m": "module"},
    ends_with=names("module"),
)  # fmt: skip

_PREFIXES: dict[str, _Prefix] = {
    **{name: _simple(name) for name in ("exec", "nohup", "command", "builtin", "setsid", "caffeinate")},
    "time": _simple("time", "format output", "portability verbose append", f="format", o="output", p="portability",
                    v="verbose", a="append"),
    "nice": _simple("nice", "adjustment", n="adjustment"),
    "ionice": _simple("ionice", "class classdata", c="class", n="classdata"),
    "stdbuf": _simple("stdbuf", "input output error", i="input", o="output", e="error"),
    "timeout": _simple("timeout", "signal kill_after", "foreground preserve_status verbose", 1, s="signal",
                       k="kill_after", v="verbose"),
    "taskset": _simple("taskset", "", "cpu_list all_tasks", 1, c="cpu_list", a="all_tasks"),
    "numactl": _simple("numactl", "cpunodebind membind interleave physcpubind preferred", "localalloc", 0,
                       N="cpunodebind", m="membind", i="interleave", C="physcpubind", l="localalloc"),
    "sudo": _simple("sudo", "user group", "preserve_env", u="user", g="group", E="preserve_env"),
    "uv": _Prefix(_UV, verb="run", is_environment=True),
    "poetry": _environment("poetry", "directory project", "quiet verbose no_interaction no_ansi", C="directory",
                           P="project", q="quiet", v="verbose", n="no_interaction"),
    "pdm": _environment("pdm", "project", "site_packages", p="project", s="site_packages"),
    "pipenv": _environment("pipenv", "python", "system quiet", q="quiet"),
    "rye": _environment("rye"),
    "hatch": _environment("hatch"),
    "pixi": _environment("pixi", "environment manifest_path", "frozen locked", e="environment"),
    **{name: _environment(name, "name prefix cwd", "no_capture_output live_stream verbose", n="name", p="prefix",
                          v="verbose") for name in ("conda", "mamba", "micromamba")},
}  # fmt: skip
_ENV = OptionTable("env", names("unset chdir"), names("ignore_environment"), {"u": "unset", "C": "chdir"})


@dataclass(frozen=True, slots=True)
class Stripped:
    words: list[str]
    """The command itself."""
    environment: dict[str, str]
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The variables that are set in front of a command (A=B command), and the command."""
    variables: dict[str, str] = {}
    for at, word in enumerate(words):
        match = _ASSIGNMENT.fullmatch(word)
        if match is not None:
            variables[match[1]] = match[2]
        elif word != "export":
            return variables, list(words[at:])
    return variables, []


def without_plain_prefixes(words: Sequence[str]) -> list[str]:
    """A command without nohup, time and the like, where these stand without options."""
    at = 0
    while at + 1 < len(words) and not words[at + 1].startswith("-"):
        prefix = _PREFIXES.get(words[at])
        if prefix is None or prefix.verb or prefix.positionals:
            break
        at += 1
    return list(words[at:])


def strip(words: Sequence[str]) -> Stripped:
    """A command without what stands in front of it."""
    environment, rest = assignments(words)
    removed: list[str] = []
    notes: list[str] = []
    while rest:
        name = rest[0].rpartition("/")[2]
        if name == "env":
            options, rest = _ENV.split(rest[1:])
            _refuse_folder("env", options.get("chdir"))
            if "ignore_environment" in options:
                raise UsageError("env -i is not followed: leave it out, or unset single variables with env -u NAME")
            if "unset" in options:
                removed.append(str(options["unset"]))
        elif name in _PREFIXES and (not _PREFIXES[name].verb or rest[1:2] == [_PREFIXES[name].verb]):
            rest = _after(_PREFIXES[name], rest, notes)
        else:
            break
        more, rest = assignments(rest)
        environment |= more
    return Stripped(rest, environment, tuple(removed), tuple(notes))


def _after(prefix: _Prefix, words: list[str], notes: list[str]) -> list[str]:
    options, rest = prefix.table.split(words[2 if prefix.verb else 1 :])
    if prefix.is_environment:
        _refuse_folder(prefix.table.command, options.get("directory") or options.get("cwd"))
        notes.append(
            f"{prefix.table.command} was not started: the program runs in vramcast's own Python environment, with the "
            "packages that are there"
        )
    if "module" in options and prefix.table is _UV:
        rest = ["python", "-m", str(options["module"]), *rest]
    return rest[prefix.positionals :]


def _refuse_folder(command: str, folder: str | bool | None) -> None:
    if folder:
        raise UsageError(f"{command} into {folder}: go there first (cd {folder}), then start vramcast")
