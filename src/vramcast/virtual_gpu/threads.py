"""The modes that make a thread see the card: PyTorch keeps them by thread, so each thread gets its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from vramcast.virtual_gpu.functions import FunctionMode
from vramcast.virtual_gpu.self_check import dispatch_mode

if TYPE_CHECKING:
    from vramcast.virtual_gpu.ledger import Ledger
    from vramcast.virtual_gpu.machine import Machine
    from vramcast.virtual_gpu.patches import Patches


class Modes(threading.local):
    """This thread's pair of modes; the books behind them are shared."""

    def __init__(self, ledger: Ledger, machine: Machine) -> None:
        self.dispatch = dispatch_mode()(ledger, machine)
        self.functions = FunctionMode(self.dispatch)

    @contextmanager
    def current(self) -> Iterator[None]:
        with self.dispatch, self.functions:
            yield


def thread_with_modes(patches: Patches, enter: Callable[[], AbstractContextManager[None]]) -> None:
    """Threads started from now on run inside `enter()`."""
    original = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def _bootstrap_inner(thread: Any) -> None:
        with enter():
            original(thread)

    patches.set(threading.Thread, "_bootstrap_inner", _bootstrap_inner)
