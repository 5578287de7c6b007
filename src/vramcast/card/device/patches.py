"""Names of torch (and of a few libraries) that stand for something else while the virtual GPU is active.

A module that is imported meanwhile may keep a stand-in for good, so each gives way to the original once the card is
gone.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint

from vramcast.card.device.one_card import CARD
from vramcast.card.dispatch.storages import HOST, block_of
from vramcast.trace.calls import CHECKPOINT, HOOK

CPU = torch.device("cpu")


class Patches:
    """Sets attributes and puts them back, in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, bool]] = []
        self._away: list[tuple[Any, str, Any, Any, bool]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        had = name in vars(owner)
        self._undo.append((owner, name, vars(owner).get(name), had))
        setattr(owner, name, value)

    def everywhere(self, name: str, original: Any, value: Any) -> None:
        """Replace a function in every module that has taken it under this name."""
        for module in list(sys.modules.values()):
            namespace = getattr(module, "__dict__", None)
            if isinstance(namespace, dict) and namespace.get(name) is original:
                self.set(module, name, value)

    def replaced(self) -> Iterator[tuple[Any, Any]]:
        """What was there before, and what is there now."""
        for owner, name, value, had in self._undo:
            if had and name in vars(owner):
                yield value, vars(owner)[name]

    def undo(self) -> None:
        while self._undo:
            _put_back(*self._undo.pop())

    @contextmanager
    def suspended(self, keep: Callable[[Any, str], bool]) -> Iterator[None]:
        """Inside, everything is as it was before, except what is to be kept."""
        away = []
        for owner, name, value, had in reversed(self._undo):
            if not keep(owner, name):
                away.append((owner, name, vars(owner)[name], value, had))
                _put_back(owner, name, value, had)
        before, self._away = self._away, away
        try:
            yield
        finally:
            self._away = before
            for owner, name, ours, *_ in reversed(away):
                setattr(owner, name, ours)

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Inside `suspended`, what was put away is back."""
        away, self._away = self._away, []
        for owner, name, ours, *_ in reversed(away):
            setattr(owner, name, ours)
        try:
            yield
        finally:
            self._away = away
            for owner, name, _, value, had in away:
                _put_back(owner, name, value, had)


def _put_back(owner: Any, name: str, value: Any, had: bool) -> None:
    if had:
        setattr(owner, name, value)
    else:
        delattr(owner, name)


@contextmanager
def without_warning(message: str) -> Iterator[None]:
    """Silence a warning that our own presence causes; filters that the program sets meanwhile stay."""
    warnings.filterwarnings("ignore", message=message)
    ours = warnings.filters[0]
    try:
        yield
    finally:
        if ours in warnings.filters:
            warnings.filters.remove(ours)  # type: ignore[attr-defined]


def backward_engine(enter: Callable[[bool], Any], in_its_thread: Callable[[Callable[[], Any]], Any]) -> Any:
    """The autograd engine, with our modes on again: they are off inside the handler that called it. Some programs call
    it themselves (Megatron-LM's pipelines), the others through torch.autograd.

    A pass that makes a graph of its own runs in the engine's thread (see autograd_thread).
    """
    kind: Any = type(torch.autograd.Variable._execution_engine)

    class Engine(kind):  # type: ignore[misc]
        def run_backward(
            self, tensors: Any, grad_tensors: Any, keep_graph: bool, create_graph: bool, *args: Any, **kwargs: Any
        ) -> Any:
            def run() -> Any:
                # torch.autograd.grad hands gradients to its caller instead.
                with enter(bool(kwargs.get("accumulate_grad"))):
                    return kind.run_backward(self, tensors, grad_tensors, keep_graph, create_graph, *args, **kwargs)

            return in_its_thread(run) if create_graph else run()

    return Engine()


def followed_by(original: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        then()
        return result

    return call


def mark_checkpoints_with_reentry(put: Patches, mark: Callable[[str], None]) -> None:
    """Those without are seen by their hooks."""

    def marked(original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def call(*args: Any) -> Any:
            mark(CHECKPOINT)
            return original(*args)

        return staticmethod(call)

    function = torch.utils.checkpoint.CheckpointFunction
    for name in ("forward", "backward"):
        put.set(function, name, marked(getattr(function, name)))


def hooks_with_modes(
    original: Callable[..., None], mode: Callable[[], Any], saving: Callable[[], Any], mark: Callable[[str], None]
) -> Callable[..., None]:
    """saved_tensors_hooks.__init__ whose hooks see the card: autograd calls them from inside our handlers. `saving`
    holds while one packs; `mark` is told of each call, and of each checkpoint."""

    def with_mode(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(value: Any) -> Any:
            mark(HOOK)
            if torch._C._len_torch_function_stack():
                return hook(value)
            with mode():
                return hook(value)

        return run

    def unseen(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(value: Any) -> Any:
            mark(HOOK)
            with torch._C.DisableTorchFunction():
                return hook(value)

        return run

    def __init__(self: Any, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        def pack(value: Any) -> Any:
            with saving():
                return pack_hook(value)

        # What checkpointing packs with asks for shapes and dtypes of every tensor, and moves nothing.
        is_bookkeeping = getattr(pack_hook, "__module__", "") == torch.utils.checkpoint.__name__
        if is_bookkeeping:
            mark(CHECKPOINT)
        original(self, unseen(pack_hook) if is_bookkeeping else with_mode(pack), with_mode(unpack_hook))

    return __init__


def seen_alike(put: Patches) -> None:
    """Checkpointing compares what it packs with what it recomputes; neither asks the card (see hooks_with_modes)."""

    def default(tensor: torch.Tensor) -> dict[str, Any]:
        with torch._C.DisableTorchFunction():
            return {"shape": tensor.shape, "dtype": tensor.dtype, "device": tensor.device}

    checks = torch.utils.checkpoint._allowed_determinism_checks_to_fns
    own = torch.utils.checkpoint._DEFAULT_DETERMINISM_MODE
    put.set(torch.utils.checkpoint, "_allowed_determinism_checks_to_fns", {**checks, own: default})


def groups_on_the_card(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tensor lists grouped by device and dtype: foreach code asks the group's device, not the tensors'."""

    def device_of(tensor: torch.Tensor) -> torch.device:
        with torch._C.DisableTorchFunction():
            block = block_of(tensor)
        if block is None:
            return CARD.device
        return CPU if block.device == HOST else torch.device("cuda", block.card)

    def group(tensors: Any, with_indices: bool = False) -> Any:
        groups = {}
        for (device, *rest), value in original(tensors, with_indices).items():
            if device.type != "meta":
                groups[(device, *rest)] = value
                continue
            lists, indices = value
            devices = [device_of(tensor) for tensor in lists[0]]
            for found in dict.fromkeys(devices):
                here = [place for place, other in enumerate(devices) if other == found]
                part = [[column[place] for place in here] if column else [] for column in lists]
                groups[(found, *rest)] = part, [indices[place] for place in here] if indices else indices
        return groups

    return group


def refuse_compiled_code(put: Patches, refuse: Callable[[str], None]) -> None:
    """torch.compile whose result looks compiled and is refused when it is called: libraries compile many functions
    that a program never calls. The backend "eager" compiles nothing (the stance sees to that)."""
    original = torch.compile

    def refused(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _switched_off():
                refuse(name)
            return function(*args, **kwargs)

        call._torchdynamo_orig_callable = function  # type: ignore[attr-defined]
        return call

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda inner: compile(inner, **options)
        if compiles_nothing(options.get("backend")) or _switched_off():
            return original(model, **options)
        if not isinstance(model, torch.nn.Module):
            return refused(model, _name_of(model))
        compiled: Any = original(model, backend="eager")
        compiled.forward = refused(compiled.forward, type(model).__name__)
        return compiled

    put.set(torch, "compile", compile)
    # What was compiled before.
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    choose = getattr(eval_frame, "_callback_from_stance", None)
    if choose is None:
        return

    def _callback_from_stance(callback: Any) -> Any:
        if callback not in (None, False) and not compiles_nothing(callback) and not _switched_off():
            refuse(_name_of(sys._getframe(1).f_locals.get("fn")))
        return choose(callback)

    put.set(eval_frame, "_callback_from_stance", _callback_from_stance)


def _switched_off() -> bool:
    """Whether torch.compile changes nothing, as torch._dynamo.optimize and its settings have it."""
    settings = sys.modules.get("torch._dynamo.config")
    by_variable = os.environ.get("TORCHDYNAMO_DISABLE") == "1" or os.environ.get("TORCH_COMPILE_DISABLE") == "1"
    return by_variable or bool(getattr(settings, "disable", False))


def _name_of(function: Any) -> str:
    """A method has the name of its owner: that is how modules are compiled."""
    owner = getattr(function, "__self__", None)
    if owner is not None:
        return type(owner).__name__
    return getattr(function, "__qualname__", None) or type(function).__name__


def compiles_nothing(backend: Any) -> bool:
    """The backend "eager", by name or as a function. torch runs its higher-order operators with it."""
    function = _innermost(backend)
    if getattr(function, "__module__", "") != "torch._dynamo.backends.debugging":
        return bool(function == "eager")
    name: str = function.__qualname__
    return name == "eager" or name.startswith("make_eager_backend")


_INSIDE = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable", "compiler_fn")
"""Where Dynamo's callbacks and torch.compile's own backends keep what they wrap, in one version of torch or another."""


def _innermost(callback: Any) -> Any:
    """The compiler behind Dynamo's callback."""
    while (inner := next(filter(None, (getattr(callback, name, None) for name in _INSIDE)), None)) is not None:
        callback = inner
    return callback


_Generator = torch.Generator


class _GeneratorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Generator)


class Generator(metaclass=_GeneratorType):
    """torch.Generator for any device: one for the card draws on the host, its numbers are not looked at."""

    active = False

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # type: ignore[misc]
        kind = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if cls.active and kind.type == "cuda":
            return CardGenerator()
        return _Generator(device)


CUDA_GENERATOR_STATE_BYTES = 16
"""Seed and offset: `CUDAGeneratorImpl::get_state`."""


class CardGenerator(_Generator):
    """A host generator that says it is the card's."""

    def __new__(cls) -> CardGenerator:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CARD.device

    def clone_state(self) -> CardGenerator:
        return CardGenerator()

    def get_state(self) -> torch.Tensor:
        return torch.zeros(CUDA_GENERATOR_STATE_BYTES, dtype=torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> CardGenerator:
        """Nothing is drawn from it, so any state will do: one of the card, or of the host's generator behind it."""
        return self

    def graphsafe_get_state(self) -> CardGenerator:
        return self

    def graphsafe_set_state(self, state: torch.Generator) -> CardGenerator:
        return self
