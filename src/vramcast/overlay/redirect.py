"""Python's way: calls on files are redirected into a throw-away folder, and what slips through is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
import tempfile
import threading
from typing import Any

from vramcast.overlay.calls import WATCHED_EVENTS, Calls
from vramcast.overlay.helper import Helper
from vramcast.overlay.landlock import restrict_writes
from vramcast.overlay.libraries import Libraries
from vramcast.overlay.tree import Tree
from vramcast.overlay.writes import Writes

_WITHOUT_LANDLOCK = "VRAMCAST_OVERLAY_WITHOUT_LANDLOCK"
"""For tests: as on a kernel that has no Landlock."""

_installed: list[Calls] = []
"""Whose audit hook holds; Python lets nobody take a hook away."""
_hooked = False


class PythonOverlay:
    def __init__(self, *, own_process: bool) -> None:
        self._environment = {name: os.environ.get(name) for name in ("TMPDIR", "PYTHONDONTWRITEBYTECODE")}
        self._folder = os.path.realpath(tempfile.mkdtemp(prefix="vramcast-"))
        self.helper = Helper(self._folder) if own_process else None
        restricted = own_process and not os.environ.get(_WITHOUT_LANDLOCK)
        restricted = restricted and restrict_writes([self._folder, "/dev", "/proc"])
        self._tree = Tree(self._folder)
        self._calls = Calls(self._tree, refuse_programs=not restricted)
        self._libraries = Libraries(self._calls)
        self._install()

    def _install(self) -> None:
        self._calls.install()
        self._libraries.install()
        self._pass_to_children()
        os.environ["TMPDIR"] = os.path.join(self._folder, "tmp")
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        _installed.append(self._calls)
        _hook()

    def _pass_to_children(self) -> None:
        """A process that multiprocessing starts anew joins us before it runs anything."""
        from multiprocessing import util

        original: Any = util.spawnv_passfds
        joins = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import join; join({self._folder!r}); "

        def spawnv_passfds(path: Any, args: Any, passfds: Any) -> Any:
            words = list(args)
            for i, word in enumerate(words):
                if os.fsdecode(word) == "-c":
                    words[i + 1] = joins + os.fsdecode(words[i + 1])
                    break
            return original(path, words, passfds)

        self._calls.put(util, "spawnv_passfds", spawnv_passfds)

    def covers_this_thread(self) -> bool:
        return self._calls.applies()

    def covers_child_processes(self) -> bool:
        return False

    def writes(self) -> Writes:
        return dataclasses.replace(self._tree.writes(), refused=tuple(dict.fromkeys(self._calls.refused)))

    def put_back(self) -> bool:
        return True  # what lies where is known to each process by itself

    def leave(self) -> None:
        _installed.remove(self._calls)
        self._libraries.remove()
        self._calls.remove()
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._tree.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def join(folder: str) -> None:
    """Called in a child process: see the files that the parent sees."""
    overlay = PythonOverlay.__new__(PythonOverlay)
    overlay._environment, overlay._folder, overlay.helper = {}, folder, None
    overlay._tree = Tree(folder)
    overlay._calls = Calls(overlay._tree, refuse_programs=True)
    overlay._libraries = Libraries(overlay._calls)
    overlay._install()


def _hook() -> None:
    global _hooked
    if not _hooked:
        sys.addaudithook(_audit)
        os.register_at_fork(after_in_child=_after_fork)
        _hooked = True


def _after_fork() -> None:
    """Another thread may have held the lock; it does not exist here."""
    for calls in _installed:
        calls.tree.lock = threading.RLock()


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event in WATCHED_EVENTS and _installed:  # even id() is an event: this is called all the time
        with contextlib.suppress(IndexError):
            _installed[-1].audit(event, args)
