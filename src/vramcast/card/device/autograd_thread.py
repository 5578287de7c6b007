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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
        work = _with_autocast_of_caller(work)
        with _levels_taken_off() as levels:
            self._work.put((_with_levels(work, levels), answer, done))
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


@contextmanager
def _levels_taken_off() -> Iterator[list[Any]]:
    """The levels of torch.func (grad, vmap) that the caller is inside of, innermost first. A thread has its own, and
    the engine hands the caller's to its thread."""
    levels = []
    while torch._C._functorch.peek_interpreter_stack() is not None:
        levels.append(torch._C._functorch.pop_dynamic_layer_stack())
    try:
        yield levels
    finally:
        for level in reversed(levels):
            torch._C._functorch.push_dynamic_layer_stack(level)


def _with_levels(work: Work, levels: list[Any]) -> Work:
    if not levels:
        return work

    def run() -> Any:
        for level in reversed(levels):
            torch._C._functorch.push_dynamic_layer_stack(level)
        try:
            return work()
        finally:
            for _ in levels:
                torch._C._functorch.pop_dynamic_layer_stack()

    return run


def _with_autocast_of_caller(work: Work) -> Work:
    if not torch.is_autocast_enabled("cuda"):
        return work
    dtype = torch.get_autocast_dtype("cuda")

    def run() -> Any:
        with torch.autocast("cuda", dtype=dtype):
            return work()

    return run
