"""The program that is run: a script, a notebook, or a module as `python -m` runs it."""

from __future__ import annotations

import builtins
import importlib
import linecache
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType

from vramcast.base.errors import UsageError
from vramcast.card.dispatch.unknown import short_path
from vramcast.scripts import notebook
from vramcast.scripts.unreached import CAUGHT, MARK, Unreached


class Program:
    """Nothing of it has run when this is made. UsageError where there is nothing to run."""

    def __init__(self, path: str, argv: Sequence[str] = (), *, is_module: bool = False) -> None:
        """`path`: of a script, or the dotted name of a module."""
        self.name = f"-m {path}" if is_module else os.fspath(path)
        self._spec = _find_module(path) if is_module else None
        self.path = path if self._spec is None else str(self._spec.origin)
        if not os.path.isfile(self.path):
            raise UsageError(f"no such script: {self.path}")
        self.is_notebook = self.path.endswith(notebook.ENDING)
        self.argv = [self.path, *argv]
        self._folder = os.getcwd() if is_module else os.path.dirname(os.path.realpath(self.path))
        self.unreached = self._read()

    def _read(self) -> Unreached:
        with open(self.path, "rb") as file:
            source = file.read()
        if self.is_notebook:
            code = notebook.code_of(source, short_path(self.path))
            linecache.cache[self.path] = (len(code), None, code.splitlines(keepends=True), self.path)
            source = code.encode()
        try:
            script = Unreached(source, self.path)
            script.compile()
            return script
        except (SyntaxError, ValueError) as error:
            name = short_path(self.path)
            if _is_shell_script(source, self.path):
                raise UsageError(
                    f"{name} is a shell script, and vramcast runs Python: write the python command that it starts, "
                    "e.g. vramcast run python train.py"
                ) from None
            line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
            raise UsageError(
                f"{name}{line}: not a script of Python {sys.version_info.major}.{sys.version_info.minor}: "
                f"{error.args[0]}"
            ) from None

    @contextmanager
    def as_main(self) -> Iterator[ModuleType]:
        """A fresh __main__ as Python makes it for this program; everything is put back afterwards."""
        main = ModuleType("__main__")
        vars(main).update(__file__=self.path, __builtins__=builtins, __cached__=None)
        if self.is_notebook:
            vars(main).update(display=print)
        if self._spec is not None:
            vars(main).update(
                __spec__=self._spec,
                __loader__=self._spec.loader,
                __package__=self._spec.parent,
                __cached__=self._spec.cached,
            )
        before = sys.modules["__main__"], sys.argv, list(sys.path), os.getcwd(), dict(os.environ)
        built_in = dict(vars(builtins))  # programs of several processes replace print
        sys.modules["__main__"] = main
        sys.argv = list(self.argv)
        sys.path[:1] = [self._folder]
        try:
            yield main
        finally:
            sys.modules["__main__"], sys.argv, sys.path[:] = before[:3]
            vars(builtins).update(built_in)
            os.chdir(before[3])
            os.environ.clear()
            os.environ.update(before[4])

    def run(self, main: ModuleType, note_caught: object) -> None:
        """`note_caught`: called where a handler of the script's begins."""
        vars(main)[MARK] = self.unreached.reached
        vars(main)[CAUGHT] = note_caught
        if self._spec is not None and self._spec.parent:
            importlib.import_module(self._spec.parent)
        exec(self.unreached.compile(), vars(main))


def _is_shell_script(source: bytes, path: str) -> bool:
    first = source.partition(b"\n")[0]
    return path.endswith((".sh", ".bash")) or (first.startswith(b"#!") and first.rstrip().endswith(b"sh"))


@contextmanager
def changed_environment(environment: Mapping[str, str], removed: Sequence[str] = ()) -> Iterator[None]:
    """The environment with what a launcher sets and removes, while its program runs."""
    before = dict(os.environ)
    for name in removed:
        os.environ.pop(name, None)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _find_module(name: str) -> ModuleSpec:
    """Find a module as `python -m NAME` would from here, without importing anything: that is part of the program."""
    before = list(sys.path)
    sys.path[:1] = [os.getcwd()]
    importlib.invalidate_caches()
    try:
        spec = _spec_of(name)
        if spec is not None and spec.submodule_search_locations is not None:
            main = _spec_of(f"{name}.__main__", spec)
            if main is None:
                raise UsageError(f"python -m {name}: it is a package, and has no __main__.py that could be run")
            spec = main
    finally:
        sys.path[:] = before
    if spec is None:
        py = " (without .py, and with dots for folders)" if name.endswith(".py") or os.sep in name else ""
        raise UsageError(f"python -m {name}: there is no module of that name here{py}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(f"python -m {name}: it has no Python source that could be run")
    return spec


def _spec_of(name: str, package: ModuleSpec | None = None) -> ModuleSpec | None:
    parent = name.rpartition(".")[0]
    if package is None and parent:
        package = _spec_of(parent)
        if package is None:
            return None
    path = None if package is None else package.submodule_search_locations
    if package is not None and path is None:
        return None
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name, path)
        if spec is not None:
            return spec
    return None
