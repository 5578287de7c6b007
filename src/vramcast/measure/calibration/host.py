"""What the host takes to issue operators of several kinds, on tensors too small to keep the card busy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.nn import functional

_CALLS = 200
_REPEATS = 7


def _issue_seconds(call: Callable[[], object], calls: int = _CALLS) -> float:
    """The median over a few rounds of the host's time for one call."""
    call()
    rounds = []
    for _ in range(_REPEATS):
        torch.cuda.synchronize()
        started = perf_counter()
        for _ in range(calls):
            call()
        rounds.append((perf_counter() - started) / calls)
    torch.cuda.synchronize()
    return median(rounds)


def _backward_seconds(make: Callable[[], torch.Tensor], depth: int) -> float:
    """Host time of one backward operator, from a chain of `depth` of them."""
    rounds = []
    for _ in range(_REPEATS):
        result = make()
        gradient = torch.ones_like(result)
        torch.cuda.synchronize()
        started = perf_counter()
        result.backward(gradient)
        rounds.append((perf_counter() - started) / depth)
    torch.cuda.synchronize()
    return median(rounds)


def _chain(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, depth: int) -> Callable[[], torch.Tensor]:
    def make() -> torch.Tensor:
        y = x
        for _ in range(depth):
            y = function(y)
        return y

    return make


def host_costs() -> dict[str, float]:
    """Seconds the host takes for one call, by kind."""
    return {kind: probe() for kind, probe in _probes().items()}


def _probes() -> dict[str, Callable[[], float]]:
    """What times each kind."""
    device: Any = {"device": "cuda"}
    x, square = torch.ones(64, 64, **device), torch.ones(64, 64, **device, requires_grad=True)
    image, kernel = torch.ones(1, 8, 8, 8, **device), torch.ones(8, 8, 3, 3, **device, requires_grad=True)
    query = torch.ones(1, 2, 16, 32, **device, dtype=torch.float16, requires_grad=True)
    weight, scalar, on_host = torch.ones(64, **device, requires_grad=True), torch.ones((), **device), torch.ones(64)
    linear, identity = torch.nn.Linear(64, 64, device="cuda"), torch.nn.Identity()
    tensors = [torch.ones(64, **device) for _ in range(100)]
    calls: dict[str, Callable[[], object]] = {
        "view": lambda: x.view(32, 128),
        "view-grad": lambda: square.view(32, 128),
        "empty": lambda: torch.empty(64, **device),
        "elementwise": lambda: x + 1.0,
        "elementwise-grad": lambda: square * x,
        "cast": x.bfloat16,
        "matmul": lambda: x @ x,
        "matmul-grad": lambda: square @ x,
        "convolution-grad": lambda: functional.conv2d(image, kernel, padding=1),
        "norm-grad": lambda: functional.layer_norm(square, (64,), weight),
        "attention-grad": lambda: functional.scaled_dot_product_attention(query, query, query),
        "reduction": lambda: x.sum(0),
        "cat": lambda: torch.cat([x, x]),
        "module": lambda: identity(x),
        "linear-module": lambda: linear(x),
    }
    slower: dict[str, Callable[[], object]] = {
        "foreach-100": lambda: torch._foreach_mul_(tensors, 1.0),
        "item": scalar.item,
        "copy-to-device": lambda: on_host.to("cuda"),
    }
    chains: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "backward-elementwise": lambda y: y * x,
        "backward-matmul": lambda y: y @ x,
        "backward-view": lambda y: y.view(64, 64),
    }
    optimizers: dict[str, dict[str, bool]] = {
        "adamw-foreach": {"foreach": True},
        "adamw-fused": {"fused": True},
        "adamw-single": {"foreach": False},
    }
    return {
        **{kind: partial(_issue_seconds, call) for kind, call in calls.items()},
        **{kind: partial(_issue_seconds, call, 50) for kind, call in slower.items()},
        **{kind: partial(_backward_seconds, _chain(op, square, 100), 100) for kind, op in chains.items()},
        **{kind: partial(_optimizer_seconds, tensors, options) for kind, options in optimizers.items()},
    }


def _optimizer_seconds(tensors: list[torch.Tensor], options: dict[str, bool]) -> float:
    """AdamW on 100 parameters, for each parameter."""
    parameters = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    step = torch.optim.AdamW(parameters, **options).step  # type: ignore[arg-type]
    return _issue_seconds(step, 5) / len(parameters)
