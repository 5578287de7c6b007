"""The scripts of the zoo, as zoo.toml lists them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

MANIFEST = Path(__file__).with_name("zoo.toml")
STAND_INS = Path(__file__).with_name("stand_ins")
PATCHES = (
    "checksums",
    "home_datasets",
    "old_loader",
    "old_make_grid",
    "old_numpy",
    "old_pillow",
    "old_plateau",
    "old_sampler",
    "old_torch_six",
    "old_torchvision",
    "old_yaml",
    "opacus_seed",
)
"""Stand-ins that change a module instead of taking its place: stand_ins/patches/sitecustomize.py."""


class ManifestError(ValueError):
    """The manifest, or a name that was asked of it, is wrong."""


@dataclass(frozen=True)
class Repository:
    """Where scripts come from: one commit of a public repository."""

    name: str
    """owner/name on GitHub."""
    commit: str
    only: tuple[str, ...] = ()
    """The folders that are needed of a large repository; all of it where empty."""

    @property
    def folder_name(self) -> str:
        return f"{self.name.replace('/', '+')}@{self.commit[:12]}"


@dataclass(frozen=True)
class Script:
    """One training script with everything that it needs to run. `{root}` in a text is the copy of the repository,
    `{data}` the folder of what was generated."""

    name: str
    repository: Repository
    path: str
    kind: str
    style: str
    arguments: str = ""
    folder: str | None = None
    """Where it is run, in the repository; the script's own folder where left out."""
    data: tuple[dict[str, Any], ...] = ()
    """What is generated for it: the recipe's name, `into`, and the recipe's parameters."""
    stand_ins: dict[str, str] = field(default_factory=dict)
    """Modules that stand in for what cannot be had (a folder of `stand_ins`, or a patch), each with the reason."""
    substitutes: str = ""
    """What else differs from the script as its authors ran it: random weights, made-up data."""
    packages: tuple[str, ...] = ()
    """Distributions that it imports beside those of the corpus."""
    environment: dict[str, str] = field(default_factory=dict)
    python_path: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Options of `vramcast run` that its first report advises."""
    steps: int = 3
    measured_steps: int | None = None
    """Where the prediction waits for an optimizer that never steps: how many steps of the others that makes."""
    room: int = 0
    """GiB to keep free for it while it is measured, where that is more than predicted: cuDNN's benchmark tries plans
    with large workspaces as long as the card has room."""
    seconds: int = 300
    """A limit for the prediction."""


def load(path: Path = MANIFEST) -> dict[str, Script]:
    """The scripts by name, in the order of the file."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    repositories = {name: _repository(name, entry) for name, entry in document["repositories"].items()}
    scripts: dict[str, Script] = {}
    for entry in document["script"]:
        script = _script(entry, repositories)
        if script.name in scripts:
            raise ManifestError(f"{script.name} stands twice in {path.name}")
        scripts[script.name] = script
    return scripts


def choose(scripts: dict[str, Script], names: Iterable[str]) -> list[Script]:
    """The scripts named; a name may be the beginning of several. All of them where none is named."""
    wanted = list(names)
    if not wanted:
        return list(scripts.values())
    chosen: dict[str, Script] = {}
    for name in wanted:
        matching = [scripts[name]] if name in scripts else [s for s in scripts.values() if s.name.startswith(name)]
        if not matching:
            raise ManifestError(f"no script of the zoo is named {name}")
        chosen |= {script.name: script for script in matching}
    return list(chosen.values())


def _repository(name: str, entry: Any) -> Repository:
    if isinstance(entry, str):
        return Repository(name, entry)
    return Repository(name, entry["commit"], tuple(entry["only"]))


def _script(entry: dict[str, Any], repositories: dict[str, Repository]) -> Script:
    name = entry.get("name", "a script without a name")
    unknown = entry.keys() - {f.name for f in fields(Script)}
    if unknown:
        raise ManifestError(f"{name}: unknown field {', '.join(sorted(unknown))}")
    if entry["repository"] not in repositories:
        raise ManifestError(f"{name}: {entry['repository']} has no commit under [repositories]")
    stand_ins = [module for module in entry.get("stand_ins", {}) if module not in PATCHES]
    missing = [module for module in stand_ins if not (STAND_INS / module).is_dir()]
    if missing:
        raise ManifestError(f"{name}: there is no stand-in for {', '.join(missing)}")
    lists: dict[str, Any] = {
        key: tuple(entry[key]) for key in ("data", "options", "packages", "python_path") if key in entry
    }
    return Script(**{**entry, **lists, "repository": repositories[entry["repository"]]})
