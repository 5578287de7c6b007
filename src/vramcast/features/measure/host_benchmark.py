"""How fast this computer issues PyTorch's work, in about a second and without a GPU.

The same small calls are timed as on the computer that the packaged host figures come from: Python, modules, the
dispatcher, autograd and an optimizer, on CPU tensors so small that their arithmetic does not count. It is this thread's
own time on a processor: waiting while another program has it is not part of the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter, thread_time

import torch
from torch import nn

from vramcast.timing.host import factor_between, reference_dispatch

_ROUNDS = 9
_FEWEST_ROUNDS = 3
_SECONDS = 1.0
"""On a slow or busy computer, fewer rounds are made."""


def slowdown_here() -> float:
    """How many times as long this computer takes for the benchmark as the undisturbed reference."""
    factor = factor_between(dispatch_seconds(), reference_dispatch())
    assert factor is not None
    return factor


def dispatch_seconds(rounds: int = _ROUNDS) -> dict[str, float]:
    """Seconds for one call of each kind: the median over rounds of some milliseconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds: dict[str, list[float]] = {}
        cases = _cases()
        deadline = perf_counter() + _SECONDS
        for done in range(rounds):  # kinds take turns, so that a disturbance meets all of them
            if done >= _FEWEST_ROUNDS and perf_counter() > deadline:
                break
            for name, (call, count) in cases.items():
                started = thread_time()
                for _ in range(count):
                    call()
                seconds.setdefault(name, []).append((thread_time() - started) / count)
        return {name: median(times) for name, times in seconds.items()}
    finally:
        torch.set_num_threads(threads)


def _cases() -> dict[str, tuple[Callable[[], object], int]]:
    """What to call, and how often in a round: each about four milliseconds on the reference."""
    x = torch.ones(4, 4, device="cpu")
    weight = torch.ones(4, 4, device="cpu", requires_grad=True)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(4, 4, device="cpu"), nn.ReLU())])
    parameters = [torch.ones(4, device="cpu", requires_grad=True) for _ in range(20)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(parameters, foreach=False)

    def backward() -> None:
        model(x).sum().backward()

    cases: dict[str, tuple[Callable[[], object], int]] = {
        "python": (_loop, 16),
        "view": (lambda: x.view(2, 8), 3000),
        "elementwise": (lambda: x + 1.0, 1500),
        "elementwise-grad": (lambda: weight * x, 1500),
        "matmul-grad": (lambda: weight @ x, 1000),
        "modules": (lambda: model(x), 60),
        "step": (backward, 20),
        "optimizer": (optimizer.step, 5),
    }
    for call, _ in cases.values():
        call()
    return cases


def _loop() -> int:
    total = 0
    for number in range(8_000):
        total += number
    return total
