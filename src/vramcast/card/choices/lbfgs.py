"""torch.optim.LBFGS where no value is known, though how often it evaluates and what it remembers depend on values.

Its step is run with the same tensor ops in the same order, each decision made as in a run that makes progress: no
tolerance is met before `max_iter` (or `max_eval`) ends the step, each iteration adds a pair to the history, and a line
search takes the first step it tries; in the first iteration, the second. From the second step on the history is full,
as it is in all but the first few steps of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches

ASSUMED = (
    "each step goes on to max_iter or max_eval, each iteration adds to the history, and from the second step on that "
    "is full"
)


def install(put: Patches, note: Callable[[str, str], None]) -> None:
    def step(optimizer: Any, closure: Callable[[], Any]) -> Any:
        note("LBFGS", ASSUMED)
        with torch.no_grad():
            return _step(optimizer, torch.enable_grad()(closure))

    original = torch.optim.LBFGS.step
    step.__doc__ = original.__doc__
    put.set(torch.optim.LBFGS, "step", step)


def _step(optimizer: Any, closure: Callable[[], Any]) -> Any:
    group = optimizer.param_groups[0]
    lr = float(group["lr"])
    state = optimizer.state[optimizer._params[0]]
    state.setdefault("func_evals", 0)
    state.setdefault("n_iter", 0)
    first_loss = closure()
    loss = float(first_loss)
    evaluations = 1
    gradient = optimizer._gather_flat_grad()
    _read(gradient.abs().max() <= group["tolerance_grad"])
    direction, t = state.get("d"), state.get("t")
    directions, steps, ro = (state.get(name) for name in ("old_dirs", "old_stps", "ro"))
    scale, previous = state.get("H_diag"), state.get("prev_flat_grad")
    if previous is not None:
        while len(directions) < group["history_size"]:
            directions.append(torch.empty_like(gradient))
            steps.append(torch.empty_like(gradient))
            ro.append(torch.ones_like(ro[0]) if ro else torch.ones((), device=gradient.device))
    held: dict[str, Any] = {}  # what torch's step has in local variables until the next iteration
    iteration = 0
    while True:
        iteration += 1
        state["n_iter"] += 1
        if state["n_iter"] == 1:
            direction, directions, steps, ro, scale = gradient.neg(), [], [], [], 1
        else:
            change = gradient.sub(previous)
            moved = direction.mul(t)
            product = change.dot(moved)
            _read(product > 1e-10)
            if len(directions) == group["history_size"]:
                for remembered in (directions, steps, ro):
                    remembered.pop(0)
            directions.append(change)
            steps.append(moved)
            ro.append(1.0 / product)
            scale = product / change.dot(change)
            factors = state.setdefault("al", [None] * group["history_size"])
            held["q"] = gradient.neg()
            direction = _direction(held["q"], factors, directions, steps, ro, scale)
        if previous is None:
            previous = gradient.clone(memory_format=torch.contiguous_format)
        else:
            previous.copy_(gradient)
        t = lr
        if state["n_iter"] == 1:
            least = 1.0 / gradient.abs().sum()
            _read(least < 1.0)
            t = least * lr
        slope = gradient.dot(direction)
        _read(slope > -group["tolerance_change"])
        last = iteration == group["max_iter"]
        tried = 0
        if group["line_search_fn"] is not None:
            held["start"] = start = optimizer._clone_param()
            twice = state["n_iter"] == 1
            gradient, tried = _line_search(optimizer, closure, start, t, direction, gradient, twice=twice)
            optimizer._add_grad(t, direction)
            _read(gradient.abs().max() <= group["tolerance_grad"])
        else:
            optimizer._add_grad(t, direction)
            if not last:
                loss = float(closure())
                gradient = optimizer._gather_flat_grad()
                _read(gradient.abs().max() <= group["tolerance_grad"])
                tried = 1
        evaluations += tried
        if last or evaluations >= group["max_eval"]:
            break
        _read(direction.mul(t).abs().max() <= group["tolerance_change"])
    state["func_evals"] += evaluations
    state.update(d=direction, t=t, old_dirs=directions, old_stps=steps, ro=ro)
    state.update(H_diag=scale, prev_flat_grad=previous, prev_loss=loss)
    return first_loss


def _direction(q: Any, factors: list[Any], directions: list[Any], steps: list[Any], ro: list[Any], scale: Any) -> Any:
    """The two loops over the history."""
    for i in range(len(directions) - 1, -1, -1):
        factors[i] = steps[i].dot(q) * ro[i]
        q.add_(directions[i], alpha=_read(-factors[i]))
    r = torch.mul(q, scale)
    for i in range(len(directions)):
        correction = directions[i].dot(r) * ro[i]
        r.add_(steps[i], alpha=_read(factors[i] - correction))
    return r


def _line_search(
    optimizer: Any, closure: Callable[[], Any], start: Any, t: Any, direction: Any, gradient: Any, *, twice: bool
) -> tuple[Any, int]:
    """Strong Wolfe conditions that hold at the first step tried; `twice`: at the second, between it and none."""
    norm = direction.abs().max()
    before = gradient.clone(memory_format=torch.contiguous_format)
    _, tried = optimizer._directional_evaluate(closure, start, t, direction)
    slope = tried.dot(direction)
    _read(slope >= 0)
    if not twice:
        return tried, 1
    bracket = [before, tried.clone(memory_format=torch.contiguous_format)]
    _read(norm * 1.0 < 1e-9)
    _, tried = optimizer._directional_evaluate(closure, start, t, direction)
    slope = tried.dot(direction)
    bracket[1] = tried.clone(memory_format=torch.contiguous_format)
    return bracket[1], 2


def _read(value: torch.Tensor) -> float:
    """The host waits for a number of the card; which one does not matter here."""
    value.item()
    return 1.0
