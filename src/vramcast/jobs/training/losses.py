"""The loss: each kind is a small function of prediction and target."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vramcast.base.errors import UsageError
from vramcast.base.factories import load_factory
from vramcast.jobs.schema import Loss
from vramcast.jobs.training import token_losses
from vramcast.jobs.training.references import first_tensor, look_up

_EPSILON = 1e-9
"""Charbonnier's, as KAIR has it."""

TARGETS = ("labels", "target", "targets")
"""Inputs that are compared with and not given to the model, when nothing else is said."""


def charbonnier(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    difference = prediction - target
    return torch.mean(torch.sqrt(difference * difference + _EPSILON))


def cross_entropy(prediction: torch.Tensor, target: torch.Tensor, label_smoothing: float = 0.0) -> torch.Tensor:
    if prediction.dim() == target.dim() + 1 and prediction.dim() > 2 and prediction.shape[:-1] == target.shape:
        prediction, target = prediction.reshape(-1, prediction.shape[-1]), target.reshape(-1)  # classes come last
    return F.cross_entropy(prediction, target, label_smoothing=label_smoothing)


def distillation(prediction: torch.Tensor, target: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Distil a teacher's logits into the student's, weighted as by Hinton et al."""
    divergence = F.kl_div(
        F.log_softmax(prediction / temperature, dim=1), F.softmax(target / temperature, dim=1), reduction="batchmean"
    )
    return divergence * temperature**2


_KINDS: dict[str, Callable[..., torch.Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth-l1": F.smooth_l1_loss,
    "charbonnier": charbonnier,
    "cross-entropy": cross_entropy,
    "bce": F.binary_cross_entropy_with_logits,
    "distillation": distillation,
}
_OPTIONS = {"cross-entropy": "label_smoothing", "distillation": "temperature"}
"""The field of a term that its kind takes beside prediction and target."""


class Criterion:
    """The sum of all terms of a job's loss."""

    def __init__(self, terms: Sequence[Loss], model: str, modules: Mapping[str, nn.Module]) -> None:
        self._terms = terms
        self._model = model
        self._modules = modules
        self._factories = {i: load_factory(term.factory) for i, term in enumerate(terms) if term.factory is not None}

    def __call__(self, values: Mapping[str, Any]) -> torch.Tensor:
        total: torch.Tensor | None = None
        for i, term in enumerate(self._terms):
            loss = self._term(i, term, values)
            if term.weight != 1.0:
                loss = term.weight * loss
            total = loss if total is None else total + loss
        assert total is not None
        return total

    def _term(self, i: int, term: Loss, values: Mapping[str, Any]) -> torch.Tensor:
        key = f"loss.{i}" if len(self._terms) > 1 else "loss"
        if term.kind == "model":
            return own_loss(values[self._model], key)
        prediction = self._prediction(term, values, key)
        if term.kind == "mean":
            return prediction.mean()
        if term.kind in token_losses.KINDS:
            reference = None if term.target is None else self._target(term, values, key)
            if term.upcast:
                prediction, reference = prediction.float(), None if reference is None else reference.float()
            return token_losses.token_loss(term.kind, prediction, reference, values, key)
        target = self._target(term, values, key)
        if target is not None and term.first_channels:
            prediction = prediction[:, : target.shape[1]]
        if term.upcast:
            prediction = prediction.float()
            target = target.float() if target is not None else None
        try:
            return self._compared(i, term, prediction, target, key)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            shapes = f"{list(prediction.shape)} and {list(target.shape) if target is not None else None}"
            raise UsageError(f"{key}: {term.kind} of {shapes} failed: {str(error).splitlines()[0]}") from error

    def _compared(
        self, i: int, term: Loss, prediction: torch.Tensor, target: torch.Tensor | None, key: str
    ) -> torch.Tensor:
        if term.kind == "factory":
            result: Any = self._factories[i](*((prediction,) if target is None else (prediction, target)))
            return result if isinstance(result, torch.Tensor) else own_loss(result, key)
        if target is None:
            raise UsageError(f"{key}.target: {term.kind} compares with a target: say which input (target: name)")
        if term.kind == "network":
            return first_tensor(self._modules[term.network or ""](prediction, target), key).mean()
        compare = _KINDS[term.kind]
        if term.kind in _OPTIONS:
            option = _OPTIONS[term.kind]
            compare = functools.partial(compare, **{option: getattr(term, option)})
        if term.network is not None:
            network = self._modules[term.network]
            return _over_features(compare, network(prediction), network(target))
        return compare(prediction, target)

    def _prediction(self, term: Loss, values: Mapping[str, Any], key: str) -> torch.Tensor:
        value = (
            values[self._model] if term.prediction is None else look_up(term.prediction, values, f"{key}.prediction")
        )
        return first_tensor(value, f"{key}.prediction")

    def _target(self, term: Loss, values: Mapping[str, Any], key: str) -> torch.Tensor | None:
        if term.target is not None:
            return first_tensor(look_up(term.target, values, f"{key}.target"), f"{key}.target")
        name = next((name for name in TARGETS if name in values), None)
        return values[name] if name is not None else None


def own_loss(output: Any, key: str) -> torch.Tensor:
    """The loss in what a model returned: .loss, ["loss"], the sum of a dict of losses, or a single number."""
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, Mapping):
        loss = output.get("loss")
        scalars = [value for value in output.values() if isinstance(value, torch.Tensor) and not value.dim()]
        if loss is None and scalars and len(scalars) == len(output):
            loss = sum(scalars)
    if loss is None and isinstance(output, torch.Tensor) and not output.dim():
        loss = output
    if loss is None and isinstance(output, (list, tuple)) and output:
        first = output[0]
        loss = first if isinstance(first, torch.Tensor) and not first.dim() else None
    if not isinstance(loss, torch.Tensor):
        raise UsageError(
            f"{key}: the model returns {type(output).__name__} without a loss: give it labels, or say another loss, "
            "e.g. loss: {kind: mse, target: name-of-an-input}"
        )
    return loss


def has_own_loss(output: Any) -> bool:
    try:
        own_loss(output, "")
    except UsageError:
        return False
    return True


def _over_features(compare: Callable[..., torch.Tensor], left: Any, right: Any) -> torch.Tensor:
    """Loss networks return one tensor, or one for each of several layers."""
    if isinstance(left, torch.Tensor):
        return compare(left, right)
    if isinstance(left, Mapping):
        left, right = list(left.values()), list(right.values())
    total: Any = sum(_over_features(compare, a, b) for a, b in zip(left, right, strict=True))
    return total  # type: ignore[no-any-return]
