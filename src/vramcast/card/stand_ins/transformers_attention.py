"""transformers asks whether flash-attn is installed long before a model wants it: a model that asks for it by
attn_implementation="flash_attention_2" cannot do without."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

from vramcast.card.stand_ins.imports import when_imported
from vramcast.card.stand_ins.known import KNOWN

_MODULE = "transformers.modeling_utils"
_METHODS = ("_check_and_adjust_attn_implementation", "_autoset_attn_implementation")
"""Where a model's attention is chosen: transformers 4.54 and newer; before."""
_PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}


class _Activates(Protocol):
    def activate(self, name: str) -> None: ...

    def is_active(self, name: str) -> bool: ...


_restore: list[Callable[[], None]] = []


def install(stand_ins: _Activates) -> None:
    _restore.append(when_imported(_MODULE, functools.partial(_watch, stand_ins=stand_ins)))


def remove() -> None:
    while _restore:
        _restore.pop()()


def _watch(module: Any, stand_ins: _Activates) -> None:
    from transformers.utils import import_utils

    _restore.append(functools.partial(_forget, import_utils))
    model = module.PreTrainedModel
    for name in _METHODS:
        method = vars(model).get(name)
        if method is not None:
            is_class_method = isinstance(method, classmethod)
            function = method.__func__ if is_class_method else method
            watched = _when_asked(function, stand_ins)
            setattr(model, name, classmethod(watched) if is_class_method else watched)
            _restore.append(functools.partial(setattr, model, name, method))


def _when_asked(original: Callable[..., Any], stand_ins: _Activates) -> Callable[..., Any]:
    @functools.wraps(original)
    def choose(*args: Any, **kwargs: Any) -> Any:
        for value in (*args[1:], *kwargs.values()):
            asked = value if isinstance(value, str) else getattr(value, "_attn_implementation", None)
            package = _PACKAGES.get(asked) if isinstance(asked, str) else None
            if package is not None and (stand_ins.is_active(package) or not _is_installed(package)):
                stand_ins.activate(package)
                _say_installed(package)
        return original(*args, **kwargs)

    return choose


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _say_installed(package: str) -> None:
    """Correct what transformers found out when it was imported."""
    from transformers.utils import import_utils

    mapping = getattr(import_utils, "PACKAGE_DISTRIBUTION_MAPPING", None)
    if mapping is not None and package not in mapping:
        mapping[package] = [KNOWN[package].distribution]
        _restore.append(functools.partial(mapping.pop, package))
    _forget(import_utils)


def _forget(module: Any) -> None:
    for name, value in vars(module).items():
        if "flash_attn" in name and hasattr(value, "cache_clear"):
            value.cache_clear()
