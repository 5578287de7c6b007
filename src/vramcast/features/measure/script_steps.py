"""Turn an unmodified training script into a step function, so that it is measured exactly as a factory is.

The script keeps the main thread (signal handlers and some libraries insist on it); the measurement runs in a
second one. Only one of them runs at a time: the script waits where a step ends until the measurement lets it go
on. Set-up ends, and the first step begins, where a module with parameters first runs forward with gradients enabled.
Only the script's own process is watched: the workers of a loader are forked from it, and run modules too.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from vramcast.base.errors import UsageError

T = TypeVar("T")


class ScriptEnded(UsageError):
    """The script finished, or failed, before it had made the steps asked for."""


class _Stop(BaseException):
    """Unwinds the script; not an Exception, so that the script's own handlers let it pass."""


class ScriptSteps:
    """Runs a script in pieces: `start()` runs its set-up, each `step()` one optimizer step."""

    def __init__(self, path: str, argv: Sequence[str]) -> None:
        self._path = path
        self._argv = list(argv)
        self._go_on = threading.Semaphore(0)
        self._paused = threading.Semaphore(0)
        self._set_up = False
        self._steps: dict[int, int] = {}
        self._finished_steps = 0
        self._stopping = False
        self._ended = False
        self._process = os.getpid()
        self._forward_hook: Any = None
        self.failure: BaseException | None = None

    def start(self) -> Callable[[], None]:
        """The factory of the job: runs the script up to its first forward pass."""
        self._let_go_on()
        return self.step

    def step(self) -> None:
        self._let_go_on()
        if self._ended:
            raise ScriptEnded(f"{self._path} ended after {self._finished_steps} optimizer steps")

    def measure(self, measurement: Callable[[], T]) -> T:
        """Run the script here and `measurement` (which calls start and step) in a thread of its own."""
        outcome: list[T] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                outcome.append(measurement())
            except BaseException as error:  # handed to the caller's thread below
                errors.append(error)
            finally:
                self._stopping = True
                self._go_on.release()

        worker = threading.Thread(target=work, name="vramcast measurement")
        worker.start()
        self._go_on.acquire()
        if not self._stopping:
            self._run()
            self._ended = True
            self._paused.release()
        worker.join()
        if self.failure is not None:
            raise self.failure
        if errors:
            raise errors[0]
        return outcome[0]

    def _run(self) -> None:
        self._forward_hook = register_module_forward_pre_hook(self._before_forward)
        handles: list[Any] = [self._forward_hook, register_optimizer_step_post_hook(self._after_optimizer_step)]
        old_argv, old_path = sys.argv, list(sys.path)
        sys.argv = [self._path, *self._argv]
        sys.path.insert(0, str(Path(self._path).resolve().parent))
        try:
            runpy.run_path(self._path, run_name="__main__")
        except (_Stop, SystemExit):
            pass
        except BaseException as error:  # told to the user by the caller
            self.failure = error
        finally:
            sys.argv, sys.path[:] = old_argv, old_path
            for handle in handles:
                handle.remove()

    def _before_forward(self, module: torch.nn.Module, *_: Any) -> None:
        # Traced into compiled modules, the rest would break their graphs, and they would take more memory.
        if torch.compiler.is_compiling():
            return
        if self._set_up or os.getpid() != self._process or not torch.is_grad_enabled():
            return
        if next(module.parameters(), None) is not None:  # transforms of pictures are modules as well
            self._set_up = True
            self._forward_hook.remove()
            self._pause()

    def _after_optimizer_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # With several optimizers a step is over when each of them has made as many.
        if os.getpid() != self._process:
            return
        self._set_up = True
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        if min(self._steps.values()) > self._finished_steps:
            self._finished_steps = min(self._steps.values())
            self._pause()

    def _pause(self) -> None:
        """Called in the script's thread: hand over to the measurement and wait."""
        self._paused.release()
        self._go_on.acquire()
        if self._stopping:
            raise _Stop

    def _let_go_on(self) -> None:
        """Called in the measurement's thread: let the script run until it pauses again or ends."""
        if self._ended:
            return
        self._go_on.release()
        self._paused.acquire()
