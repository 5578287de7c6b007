"""The training loop that most workloads share, and the optimizers by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

Step = Callable[[], None]
Batch = dict[str, torch.Tensor]
# Random data and weights overflow at the usual first scale of 65536; the scaler would then skip the optimizer for
# more steps than are measured, and a run without optimizer state is not the run that people want to know about.
FIRST_SCALE = 1.0


class SignMomentum(torch.optim.Optimizer):
    """Lion's rule written as people write their own optimizers: a plain loop over parameters."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                average = state["average"]
                update = average.mul(beta1).add(p.grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-group["lr"])
                average.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def make_optimizer(name: str, params: Iterable[Any], lr: float = 1e-4) -> torch.optim.Optimizer:
    """An optimizer by its short name, with the arguments people give it."""
    o = torch.optim
    simple: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: o.SGD(params, lr=lr),
        "sgd-momentum": lambda: o.SGD(params, lr=lr, momentum=0.9, weight_decay=1e-4),
        "sgd-nesterov-fused": lambda: o.SGD(params, lr=lr, momentum=0.9, nesterov=True, fused=True),
        "adam": lambda: o.Adam(params, lr=lr),
        "adam-amsgrad": lambda: o.Adam(params, lr=lr, amsgrad=True),
        "adam-fused": lambda: o.Adam(params, lr=lr, fused=True),
        "adamw": lambda: o.AdamW(params, lr=lr),
        "adamw-fused": lambda: o.AdamW(params, lr=lr, fused=True),
        "adamw-loop": lambda: o.AdamW(params, lr=lr, foreach=False),
        "adagrad": lambda: o.Adagrad(params, lr=lr),
        "adadelta": lambda: o.Adadelta(params, lr=lr),
        "rmsprop": lambda: o.RMSprop(params, lr=lr, momentum=0.9),
        "rmsprop-centered": lambda: o.RMSprop(params, lr=lr, centered=True),
        "adafactor": lambda: o.Adafactor(params, lr=lr),
        "nadam": lambda: o.NAdam(params, lr=lr),
        "radam": lambda: o.RAdam(params, lr=lr),
        "adamax": lambda: o.Adamax(params, lr=lr),
        "asgd": lambda: o.ASGD(params, lr=lr),
        "rprop": lambda: o.Rprop(params, lr=lr),
        "lion-own": lambda: SignMomentum(params, lr=lr),
    }
    if name in simple:
        return simple[name]()
    if name == "adafactor-transformers":
        from transformers.optimization import Adafactor

        return Adafactor(params, scale_parameter=True, relative_step=True, warmup_init=True, lr=None)
    if name in ("adamw8bit", "paged-adamw8bit"):
        import bitsandbytes as bnb

        return (bnb.optim.AdamW8bit if name == "adamw8bit" else bnb.optim.PagedAdamW8bit)(params, lr=lr)
    raise ValueError(f"no optimizer is called {name!r}")


def autocast_for(precision: str) -> Any:
    """The autocast context of a precision; weights stored in a half format need none."""
    if precision == "fp16":
        return torch.autocast("cuda", dtype=torch.float16)
    if precision == "bf16":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()


def to_cuda(batch: Batch) -> Batch:
    return {name: tensor.to("cuda") for name, tensor in batch.items()}


def train(
    model: nn.Module,
    batch: Batch | Callable[[], Batch],
    forward: Callable[[nn.Module, Batch], Any],
    optimizer: torch.optim.Optimizer,
    *,
    precision: str = "fp32",
    clip: float | None = None,
    accumulate: int = 1,
    style: str = "function",
    after_step: Callable[[], None] | None = None,
) -> Step:
    """The step of an ordinary loop.

    `batch` is a CPU batch that is moved each time, or a function that makes one on the device. `forward` returns
    the loss, or (loss, outputs) when the outputs stay alive beside it. In the style "function" every local dies
    when the step returns; in the style "loop" batch, outputs and loss live until the next iteration replaces
    them, as in a loop at the top level of a script.
    """
    scaler = torch.amp.GradScaler("cuda", init_scale=FIRST_SCALE) if precision == "fp16" else None
    get_batch = batch if callable(batch) else lambda: to_cuda(batch)

    def update() -> None:
        if scaler is None:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        else:
            if clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
        if after_step is not None:
            after_step()

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(accumulate):
            inputs = get_batch()
            with autocast_for(precision):
                result = forward(model, inputs)
            loss = result[0] if isinstance(result, tuple) else result
            if accumulate > 1:
                loss = loss / accumulate
            (loss if scaler is None else scaler.scale(loss)).backward()
        update()

    def loop() -> Iterator[None]:
        while True:
            inputs = get_batch()
            with autocast_for(precision):
                result = forward(model, inputs)
            loss = result[0] if isinstance(result, tuple) else result
            optimizer.zero_grad(set_to_none=True)
            (loss if scaler is None else scaler.scale(loss)).backward()
            update()
            yield

    if style == "function":
        return step
    if style != "loop" or accumulate != 1:
        raise ValueError("style is 'function' or 'loop', and a loop does not accumulate")
    iterations = loop()
    return lambda: next(iterations)
