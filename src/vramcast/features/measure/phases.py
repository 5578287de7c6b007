"""Tell forward, backward and optimizer apart in code that knows nothing of being watched.

A step is cut wherever a backward pass or an optimizer step begins or ends. Each stretch between two cuts
takes its name from what ends it: what comes before a backward pass is forward work; what comes before an
optimizer step, once a gradient exists, belongs to the optimizer (clipping, unscaling), and so does the rest
of the step after the last optimizer (zeroing gradients, averaging weights).
`torch.autograd.grad` starts no backward phase: code that calls it does so to compute a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

SETUP, FORWARD, BACKWARD, OPTIMIZER = "setup", "forward", "backward", "optimizer"

Boundary = Callable[[str], None]
"""Called at every cut with the name of the stretch that has just ended."""


class PhaseWatcher:
    """Calls `boundary` at each cut, and counts the host's time in data loading and copies to the device."""

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = boundary
        self._backward_depth = 0
        self._optimizer_depth = 0
        self._gradients_pending = False
        self._in_step = False
        self.data_seconds = 0.0
        self.batches = 0
        """Taken from data loaders in the present step."""
        self.loader: DataLoader[Any] | None = None
        """The first that a step took a batch from."""
        self._loaders: WeakKeyDictionary[Any, DataLoader[Any]] = WeakKeyDictionary()
        self.optimizer_steps = 0
        """Optimizer steps since the watching began; a gradient scaler that finds an overflow skips one."""

    @property
    def current(self) -> str:
        """The phase as far as it is known now; a stretch that is still open counts as forward."""
        if not self._in_step:
            return SETUP
        if self._optimizer_depth:
            return OPTIMIZER
        return BACKWARD if self._backward_depth else FORWARD

    def begin_step(self) -> None:
        self._in_step = True
        self._gradients_pending = False
        self.data_seconds = 0.0
        self.batches = 0

    def end_step(self) -> None:
        self._boundary(OPTIMIZER)
        self._in_step = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Install the hooks; everything is put back as it was on the way out."""
        original_backward = torch.autograd.backward
        loader_iterator: Any = torch.utils.data.dataloader._BaseDataLoaderIter
        original_next = loader_iterator.__next__
        loader_class: Any = DataLoader
        original_iter = DataLoader.__iter__
        tensor_class: Any = torch.Tensor
        original_to, original_cuda = torch.Tensor.to, torch.Tensor.cuda

        def backward(*args: Any, **kwargs: Any) -> Any:
            # A reentrant checkpoint runs a backward pass inside the backward pass: only the outer one cuts.
            if self._backward_depth == 0:
                self._boundary(FORWARD)
            self._backward_depth += 1
            try:
                return original_backward(*args, **kwargs)
            finally:
                self._backward_depth -= 1
                if self._backward_depth == 0:
                    self._boundary(BACKWARD)
                    self._gradients_pending = True

        def timed(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                started = perf_counter()
                result = function(*args, **kwargs)
                self.data_seconds += perf_counter() - started
                return result

            return call

        def iterate(loader: DataLoader[Any]) -> Any:
            iterator = original_iter(loader)
            self._loaders[iterator] = loader
            return iterator

        timed_next = timed(original_next)

        def next_batch(iterator: Any) -> Any:
            batch = timed_next(iterator)
            if self._in_step:
                self.batches += 1
                if self.loader is None:
                    self.loader = self._loaders.get(iterator)
            return batch

        def moving(function: Callable[..., Any]) -> Callable[..., Any]:
            timed_function = timed(function)

            def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                if self._in_step and tensor.is_cpu:
                    return timed_function(tensor, *args, **kwargs)
                return function(tensor, *args, **kwargs)

            return call

        def before_optimizer(*_: Any) -> None:
            if self._optimizer_depth == 0:
                # A hook on a parameter may update it inside the backward pass.
                before = OPTIMIZER if self._gradients_pending else FORWARD
                self._boundary(BACKWARD if self._backward_depth else before)
            self._optimizer_depth += 1

        def after_optimizer(*_: Any) -> None:
            self._optimizer_depth -= 1
            if self._optimizer_depth == 0:
                self.optimizer_steps += 1
                self._boundary(OPTIMIZER)
                self._gradients_pending = False

        handles = [
            register_optimizer_step_pre_hook(before_optimizer),
            register_optimizer_step_post_hook(after_optimizer),
        ]
        torch.autograd.backward = backward
        loader_iterator.__next__ = next_batch
        loader_class.__iter__ = iterate
        tensor_class.to, tensor_class.cuda = moving(original_to), moving(original_cuda)
        try:
            yield
        finally:
            torch.autograd.backward = original_backward
            loader_iterator.__next__ = original_next
            loader_class.__iter__ = original_iter
            # `to` and `cuda` are inherited from the C++ base class: removing ours shows them again.
            del tensor_class.to, tensor_class.cuda
            for handle in handles:
                handle.remove()
