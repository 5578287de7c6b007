"""Changes to libraries that are made when a program imports them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

Run = Callable[[ModuleType], None]


def when_imported(
    name: str, change: Run, around: Callable[[Run, ModuleType], None] | None = None
) -> Callable[[], None]:
    """Call `change` with the module: at once where it is there already, else when it has been imported. Returns what
    stops waiting for it. `around` gets what runs the module's code, and the module."""
    module = sys.modules.get(name)
    if module is not None:
        change(module)
        return lambda: None
    watcher = _Watcher(name, change, around)
    sys.meta_path.insert(0, watcher)
    return lambda: sys.meta_path.remove(watcher)


class _Watcher:
    def __init__(self, name: str, change: Run, around: Callable[[Run, ModuleType], None] | None) -> None:
        self._name = name
        self._change = change
        self._around = around
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                if self._around is None:
                    run(module)
                else:
                    self._around(run, module)
                self._change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
