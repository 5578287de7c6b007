"""Compiled kernels that a program loads from the Hugging Face hub with `kernels.get_kernel`.

A build for a GPU cannot be loaded here, and a program that falls back to other code when loading fails would be
predicted with that code. Where a stand-in knows what the kernels allocate, it is what `get_kernel` returns.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from vramcast.card.stand_ins.imports import when_imported

_STAND_INS = {
    "flash-attn": "flash_attn",
    "flash-attn2": "flash_attn",
    "flash-attn3": "flash_attn_interface",
    "flash-attention-3": "flash_attn_interface",
    "vllm-flash-attn3": "flash_attn_interface",
    "causal-conv1d": "causal_conv1d",
}
"""By the repository's name, whoever built it: builds of one package allocate alike."""
_LOADERS = ("get_kernel", "get_locked_kernel")


class _StandIns(Protocol):
    def activate(self, name: str) -> None: ...
    def note(self, text: str) -> None: ...


_restore: list[Callable[[], None]] = []


def install(stand_ins: _StandIns) -> None:
    _restore.append(when_imported("kernels", functools.partial(_change, stand_ins=stand_ins)))


def remove() -> None:
    while _restore:
        _restore.pop()()


def stand_in_for(repository: str) -> str | None:
    return _STAND_INS.get(repository.rpartition("/")[2].replace("_", "-"))


def _change(module: Any, stand_ins: _StandIns) -> None:
    def put(name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, make(original))
            _restore.append(functools.partial(setattr, module, name, original))

    for name in _LOADERS:
        put(name, functools.partial(_loaded, stand_ins))
    put("has_kernel", _has)


def _loaded(stand_ins: _StandIns, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(repo_id: str, *args: Any, **options: Any) -> ModuleType:
        name = stand_in_for(repo_id)
        if name is not None:
            stand_ins.activate(name)
            return _as_kernel(name)
        try:
            return original(repo_id, *args, **options)  # type: ignore[no-any-return]
        except Exception:
            stand_ins.note(
                f"kernels of {repo_id} could not be loaded here: where the program goes on without them, so does the "
                "prediction"
            )
            raise

    return load


def _has(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def has_kernel(repo_id: str, *args: Any, **options: Any) -> bool:
        return stand_in_for(repo_id) is not None or bool(original(repo_id, *args, **options))

    return has_kernel


def _as_kernel(name: str) -> ModuleType:
    """The package, whose modules a kernel's repository has too: flash_attn_interface is one of its own there."""
    module = importlib.import_module(name)
    if name == "flash_attn_interface":
        module.flash_attn_interface = module  # type: ignore[attr-defined]
    return module
