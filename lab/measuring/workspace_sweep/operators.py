"""Operators other than convolutions: random cases and what their forward and backward allocate."""

from __future__ import annotations

import json
import random
from typing import Any

import torch
from torch import Tensor

from lab.measuring.workspace_sweep import array_operators, network_operators
from lab.measuring.workspace_sweep.record import record

MAKERS = {**network_operators.MAKERS, **array_operators.MAKERS}
"""In this order: cases are drawn by it."""
HEADER = "id,op,parameters,forward,forward_peak,backward,backward_peak,notes,error"


def _first_tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        return [tensor for item in result for tensor in _first_tensors(item)]
    data = getattr(result, "data", None)
    return [data] if isinstance(data, Tensor) else []


def measure(index: int, rng: random.Random) -> str:
    """One CSV row for one random case."""
    name = rng.choices(list(MAKERS), [weight for weight, _ in MAKERS.values()])[0]
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(index)
    made = MAKERS[name][1](rng)
    forward = record(made.forward)
    backward_history, backward_peak, error = "", 0, forward.error
    if made.wrt and not error:
        outputs = [tensor for tensor in _first_tensors(forward.result) if tensor.requires_grad][:1]
        grads = [torch.zeros_like(tensor) for tensor in outputs]
        # The graph must die with the call, as it does in training; `outputs` holds only results.
        forward = type(forward)(None, forward.history, forward.peak_bytes, "")
        with made.backward_context():
            backward = record(lambda: torch.autograd.grad(outputs, list(made.wrt), grads, allow_unused=True))
        backward_history, backward_peak = backward.history, backward.peak_bytes
        error = backward.error and f"backward: {backward.error}"
    torch.cuda.synchronize()
    parameters = json.dumps(made.parameters, separators=(";", "="), sort_keys=True).replace('"', "").replace(",", " ")
    notes = json.dumps(made.notes, separators=(";", "="), sort_keys=True).replace('"', "").replace(",", " ")
    fields = [index, made.op, parameters, forward.history[:8000], forward.peak_bytes, backward_history[:8000], backward_peak,
              notes, error.replace(",", ";")]  # fmt: skip
    return ",".join(map(str, fields))
