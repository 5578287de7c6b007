"""A process that is spawned gets copies of what it is given, made by pickle, and so it does where it is a fork.

An object may leave out of its copy what a fork would share, such as an open file, where both would move one place.
"""

from __future__ import annotations

import io
import multiprocessing.context
import multiprocessing.popen_fork
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

_SHARED = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage, torch.Generator, torch.Stream, torch.Event)
"""A spawned process would have the same memory, by handles that a virtual card does not give; a fork has it already."""


class Popen(multiprocessing.popen_fork.Popen):
    """A fork, made as a new interpreter would be. While it pickles, multiprocessing asks it for file descriptors."""

    def _launch(self, process_obj: Any) -> None:
        super()._launch(_Copied(process_obj, self))  # type: ignore[misc]

    @staticmethod
    def duplicate_for_child(descriptor: int) -> int:
        return descriptor

    class DupFd:
        """A file descriptor of the parent, which a fork has too."""

        def __init__(self, descriptor: int) -> None:
            self._descriptor = descriptor

        def detach(self) -> int:
            return os.dup(self._descriptor)


class _Copied:
    """Stands for a process that is to be started: what it is given is pickled here and read again in the fork."""

    def __init__(self, process: Any, popen: Popen) -> None:
        self._process = process
        self._shared: list[Any] = []
        file = io.BytesIO()
        multiprocessing.context.set_spawning_popen(popen)  # type: ignore[arg-type]
        try:
            _Pickler(file, self._shared).dump(process)
            self._pickled = file.getvalue()
        except Exception:  # whatever the script's objects raise: then the fork has them as they are
            self._pickled = b""
        finally:
            multiprocessing.context.set_spawning_popen(None)

    def _bootstrap(self, parent_sentinel: int | None = None) -> int:
        process = self._process
        if self._pickled:
            process = _Unpickler(io.BytesIO(self._pickled), self._shared).load()
        code: int = process._bootstrap(parent_sentinel=parent_sentinel)
        return code


class _Pickler(ForkingPickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._shared = shared

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, _SHARED):
            return None
        self._shared.append(obj)
        return len(self._shared) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: int) -> Any:
        return self._shared[pid]
