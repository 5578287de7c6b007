"""What the host takes to issue operators of several kinds, on tensors too small to keep the card busy."""

from __future__ import annotations

from collections.abc import Callable
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
    device: Any = {"device": "cuda"}
    x, square = torch.ones(64, 64, **device), torch.ones(64, 64, **device, requires_grad=True)
    image, kernel = torch.ones(1, 8, 8, 8, **device), torch.ones(8, 8, 3, 3, **device, requires_grad=True)
    query = torch.ones(1, 2, 16, 32, **device, dtype=torch.float16, requires_grad=True)
    weight, scalar, on_host = torch.ones(64, **device, requires_grad=True), torch.ones((), **device), torch.ones(64)
    linear, identity = torch.nn.Linear(64, 64, device="cuda"), torch.nn.Identity()
    tensors = [torch.ones(64, **device) for _ in range(100)]
    costs = {
        "view": _issue_seconds(lambda: x.view(32, 128)),
        "view-grad": _issue_seconds(lambda: square.view(32, 128)),
        "empty": _issue_seconds(lambda: torch.empty(64, **device)),
        "elementwise": _issue_seconds(lambda: x + 1.0),
        "elementwise-grad": _issue_seconds(lambda: square * x),
        "cast": _issue_seconds(x.bfloat16),
        "matmul": _issue_seconds(lambda: x @ x),
        "matmul-grad": _issue_seconds(lambda: square @ x),
        "convolution-grad": _issue_seconds(lambda: functional.conv2d(image, kernel, padding=1)),
        "norm-grad": _issue_seconds(lambda: functional.layer_norm(square, (64,), weight)),
        "attention-grad": _issue_seconds(lambda: functional.scaled_dot_product_attention(query, query, query)),
        "reduction": _issue_seconds(lambda: x.sum(0)),
        "cat": _issue_seconds(lambda: torch.cat([x, x])),
        "module": _issue_seconds(lambda: identity(x)),
        "linear-module": _issue_seconds(lambda: linear(x)),
        "foreach-100": _issue_seconds(lambda: torch._foreach_mul_(tensors, 1.0), 50),
        "item": _issue_seconds(scalar.item, 50),
        "copy-to-device": _issue_seconds(lambda: on_host.to("cuda"), 50),
        "backward-elementwise": _backward_seconds(_chain(lambda y: y * x, square, 100), 100),
        "backward-matmul": _backward_seconds(_chain(lambda y: y @ x, square, 100), 100),
        "backward-view": _backward_seconds(_chain(lambda y: y.view(64, 64), square, 100), 100),
    }
    costs |= _optimizers(tensors)
    return costs


def _optimizers(tensors: list[torch.Tensor]) -> dict[str, float]:
    """AdamW on 100 parameters, for each parameter."""
    seconds = {}
    for name, options in (("foreach", {"foreach": True}), ("fused", {"fused": True}), ("single", {"foreach": False})):
        parameters = [tensor.detach().clone().requires_grad_() for tensor in tensors]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        step = torch.optim.AdamW(parameters, **options).step  # type: ignore[arg-type]
        seconds[f"adamw-{name}"] = _issue_seconds(step, 5) / len(parameters)
    return seconds
