"""The thread in which autograd works for the card.

On CUDA, backward passes run in a thread of the engine's own, and PyTorch numbers the nodes of a graph thread by thread.
A second backward pass through a first one (`create_graph=True`: gradient penalties, physics losses) visits nodes by
these numbers, latest first, so nodes that the engine's thread has made mix with those of the forward pass in another
order than if one thread had made both, and other tensors are alive at the peak. Without data everything would run in
the caller's thread; such passes are therefore handed to one thread, which keeps its count as the engine's does.
"""

from __future__ import annotations

import _thread
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

Work = Callable[[], Any]


class AutogradThread:
    """Runs one piece of work at a time, while the caller waits."""

    def __init__(self, enter: Callable[[], AbstractContextManager[None]]) -> None:
        """`enter` makes a thread see the card."""
        self._enter = enter
        self._work: queue.SimpleQueue[tuple[Work, list[Any], threading.Event] | None] = queue.SimpleQueue()
        self._thread: int | None = None
        self._ended = threading.Event()

    def run(self, work: Work) -> Any:
        if threading.get_ident() == self._thread:
            return work()
        if self._thread is None:
            # Not threading.Thread, whose threads see the card from their start; here each piece of work enters anew.
            self._thread = _thread.start_new_thread(self._loop, ())
        answer: list[Any] = []
        done = threading.Event()
        self._work.put((_with_autocast_of_caller(work), answer, done))
        done.wait()
        error, result = answer
        try:
            if error is not None:
                raise error
            return result
        finally:
            del error, answer  # the error's traceback holds this frame: they would keep each other, and every tensor

    def close(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            self._ended.wait()
            self._thread = None

    def _loop(self) -> None:
        while True:
            item = self._work.get()
            if item is None:
                self._ended.set()
                return
            work, answer, done = item
            # No name here may keep a tensor alive while the next piece of work is awaited.
            del item
            try:
                with self._enter():
                    answer += (None, work())
            except BaseException as error:  # raised again in the caller's thread
                answer += (error, None)
            del work, answer
            done.set()


def _with_autocast_of_caller(work: Work) -> Work:
    if not torch.is_autocast_enabled("cuda"):
        return work
    dtype = torch.get_autocast_dtype("cuda")

    def run() -> Any:
        with torch.autocast("cuda", dtype=dtype):
            return work()

    return run
