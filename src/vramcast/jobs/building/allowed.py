"""Which arguments of a library's builders and models a job may give: those that say what a network is like. Files,
addresses, and what would load weights or kernels are not among them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import nn

from vramcast.base.errors import UsageError
from vramcast.jobs.code_places import is_plain
from vramcast.jobs.references import nearest

ATTENTION = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
EXPERTS = ("eager", "batched_mm", "grouped_mm")
WEIGHTS = ("weights", "weights_backbone", "pretrained", "pretrained_backbone", "checkpoint_path", "pretrained_cfg")
"""Arguments of builders that load weights. Null and false are allowed: nothing is loaded here anyway."""

_OF_FEATURES = ("features_only", "out_indices", "output_stride", "scriptable", "exportable", "no_jit")
_NUMBERS = (bool, int, float, type(None))
_OF_EVERY_CALL = (
    "return_dict", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits",
    "interpolate_pos_encoding", "num_items_in_batch", "return_loss", "logits_to_keep",
)  # fmt: skip
"""Options of transformers' models that some take among others without naming them."""


def without_weights(key: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without those that only state that nothing is loaded."""
    for name in WEIGHTS:
        if arguments.get(name) not in (None, False):
            raise UsageError(f"{key}.{name}: no weights are loaded, and none are needed: leave it out")
    return {name: value for name, value in arguments.items() if name not in WEIGHTS}


def check_arguments(key: str, arguments: Mapping[str, Any], known: Collection[str], of: str) -> None:
    """UsageError for a name that is not known, and for a value that is no plain one."""
    for name, value in arguments.items():
        if name not in known:
            guess = nearest(name, known)
            raise UsageError(f"{key}.{name}: {of} takes no such argument{guess if guess.startswith(';') else ''}")
        if not is_plain(value):
            raise UsageError(f"{key}.{name}: numbers, true, false and plain words are possible, not {value!r:.80}")


def check_transformers(key: str, arguments: Mapping[str, Any], model_class: Any) -> None:
    """The kernels by name; of the class's own arguments, numbers and switches."""
    for name, known in (("attn_implementation", ATTENTION), ("experts_implementation", EXPERTS)):
        if name in arguments:
            check_kernels(f"{key}.{name}", arguments[name], known)
    rest = {name: value for name, value in arguments.items() if not name.endswith("_implementation")}
    own = [name for name in parameters_of(model_class.__init__) if name not in ("self", "config")]
    check_arguments(key, rest, own, model_class.__name__)
    for name, value in rest.items():
        if not isinstance(value, _NUMBERS):
            raise UsageError(f"{key}.{name}: a number, true or false is possible, not {value!r:.80}")


def check_kernels(key: str, value: Any, known: Collection[str]) -> None:
    """An implementation, or one for each part of the model: never the address of one to fetch."""
    for name in value.values() if isinstance(value, Mapping) else (value,):
        if name is not None and name not in known:
            raise UsageError(f"{key}: {name!r:.80} is not one of {', '.join(known)}; kernels are never fetched")


def check_options(key: str, options: Mapping[str, Any], call: Any) -> None:
    """Further arguments of a call: those that the method names."""
    try:
        known = parameters_of(call)
    except (TypeError, ValueError):
        known = ()
    check_arguments(key, options, [*known, *_OF_EVERY_CALL], "it")


def parameters_of(function: Any) -> tuple[str, ...]:
    """The names of its parameters, without *args and **kwargs."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind in kinds)


def network_arguments(module_name: str) -> set[str]:
    """What the networks of a library's module take when they are made: a builder passes on whatever it is given."""
    module = importlib.import_module(module_name)
    made = [member for member in vars(module).values() if isinstance(member, type) and issubclass(member, nn.Module)]
    return {*_names(made), *_OF_FEATURES} - {"self", *WEIGHTS}


def _names(classes: Iterable[type]) -> Iterable[str]:
    for class_ in classes:
        for base in class_.__mro__:
            if "__init__" in vars(base) and issubclass(base, nn.Module) and base is not nn.Module:
                yield from parameters_of(vars(base)["__init__"])
