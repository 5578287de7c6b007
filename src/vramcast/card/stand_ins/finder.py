"""Answers `import` for packages that are not installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from vramcast.card.dispatch.unknown import caller
from vramcast.card.stand_ins import (
    cuda_extensions,
    deepspeed_ops,
    hub_kernels,
    transformer_engine,
    transformers_attention,
)
from vramcast.card.stand_ins.guarded import is_guarded
from vramcast.card.stand_ins.known import KNOWN, Package, names_of

PACKAGES = Path(__file__).parent / "packages"


_INSTALLED_IN = ("site-packages", "dist-packages")


class _Metadata(Distribution):
    """What importlib.metadata says of a package that a stand-in answers for."""

    def __init__(self, package: Package) -> None:
        self._package = package

    def read_text(self, filename: str) -> str | None:
        package = self._package
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: {package.distribution}\nVersion: {package.version}\n"
        return f"{package.name}\n" if filename == "top_level.txt" else None

    def locate_file(self, path: Any) -> Any:
        return PACKAGES / path


class StandIns(DistributionFinder):
    """One for each virtual card; the last to be asked for a module, so that installed packages come first."""

    def __init__(self, note: Callable[..., None], wanted: Iterable[str] = ()) -> None:
        """`wanted`: packages that the user says will be there."""
        self._note = note
        self.wanted = names_of(wanted)
        self._active: set[str] = set()
        self._looked_for: set[str] = set()
        self._asked_for = _AskedFor(self)

    def install(self) -> None:
        """Where the user says that a package will be there, its stand-in goes before one that is installed: without a
        GPU its kernels cannot be loaded."""
        sys.meta_path.append(self)
        sys.meta_path.insert(0, self._asked_for)
        transformers_attention.install(self)
        hub_kernels.install(self)
        transformer_engine.install()
        cuda_extensions.install(self._note)
        deepspeed_ops.install(self._note)

    def remove(self) -> None:
        deepspeed_ops.remove()
        cuda_extensions.remove()
        transformer_engine.remove()
        hub_kernels.remove()
        transformers_attention.remove()
        sys.meta_path.remove(self)
        sys.meta_path.remove(self._asked_for)
        for name in [name for name in sys.modules if name.partition(".")[0] in self._active]:
            del sys.modules[name]
        importlib.invalidate_caches()
        for name in sorted(self._looked_for - self._active):
            package = KNOWN[name]
            self._note(
                "packages",
                f"{package.distribution} was looked for and is not installed here: the program goes on without it; "
                f"--with {package.distribution} predicts the run with it",
            )

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in KNOWN:
            return None
        if fullname not in self._active and not self._needed(fullname, sys._getframe(1)):
            if not _is_library(sys._getframe(1)):
                self._looked_for.add(fullname)
            return None
        self.activate(fullname)
        return PathFinder.find_spec(fullname, [str(PACKAGES)])

    def find_distributions(self, context: Any = DistributionFinder.Context()) -> Iterator[Distribution]:  # noqa: B008
        for name in sorted(self._active | self.wanted):
            package = KNOWN[name]
            if context.name in (None, package.distribution, package.name):
                yield _Metadata(package)

    def is_active(self, name: str) -> bool:
        return name in self._active

    def activate(self, name: str) -> None:
        """From now on the package is there."""
        if name in self._active:
            return
        self._active.add(name)
        package = KNOWN[name]
        text = (
            f"{package.distribution} is not installed here: a stand-in takes the memory that the source of version "
            f"{package.version} takes; times are from its bytes and operations"
        )
        if PathFinder.find_spec(name) is not None:
            text = (
                f"{package.distribution} cannot load its kernels here: a stand-in takes the memory that the source of "
                f"version {package.version} takes; times are from its bytes and operations"
            )
        self._note(
            "packages",
            text,
            caller(name),
        )

    def note(self, text: str) -> None:
        self._note("packages", text)

    def _needed(self, name: str, frame: FrameType | None) -> bool:
        """Whether the program cannot go on without it: it is imported, not looked for, and nobody handles its
        absence."""
        if name in self.wanted or _asker(frame).partition(".")[0] in KNOWN[name].part_of:
            return True
        return _is_import(frame) and not is_guarded(frame)


class _AskedFor:
    """The first to be asked for a module."""

    def __init__(self, stand_ins: StandIns) -> None:
        self._stand_ins = stand_ins

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return self._stand_ins.find_spec(fullname, path, target) if fullname in self._stand_ins.wanted else None


def _asker(frame: FrameType | None) -> str:
    """The module that asks."""
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(("importlib", "_frozen_importlib")):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def _is_library(frame: FrameType | None) -> bool:
    """Whether an installed package asks: those look for many others."""
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(("importlib", "_frozen_importlib")):
        frame = frame.f_back
    return frame is None or any(folder in frame.f_code.co_filename for folder in _INSTALLED_IN)


def _is_import(frame: FrameType | None) -> bool:
    """Whether an import statement asks, and not importlib.util.find_spec."""
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(("importlib", "_frozen_importlib")):
        if frame.f_code.co_name == "_find_and_load":
            return True
        frame = frame.f_back
    return False
