"""Lets Dynamo and Inductor work beside the virtual card."""

from __future__ import annotations

import functools
import gc
import importlib.util
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor

from vramcast.base.factories import count_anew, without_collections
from vramcast.base.sealing import unsealed
from vramcast.base.torch_versions import COMPILED_AND_MEASURED, COMPILED_HERE, in_words
from vramcast.card.compiled import fake_cuda
from vramcast.card.compiled.quick_imports import quick_imports, quick_registrations
from vramcast.card.compiled.visibility import Visibility, keeping_the_card
from vramcast.card.device import patches
from vramcast.card.device.cuda_api import CardProperties
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.device.patches import Patches
from vramcast.card.dispatch.tensor_answers import written_without_values
from vramcast.card.dispatch.unknown import UnknownKernel

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine

_LOOKED_INTO = (
    "packages/flash_attn", "kernels/flash_attention", "kernels/rotary", "kernels/cross_entropy", "kernels/fused_norm",
)  # fmt: skip
"""Stand-ins for Python code that ends in operators or Triton kernels, by the beginnings of their paths."""
OFF_BY = "compiled code often takes 10 to 50 % less memory than eager code, and sometimes 10 % more"
AMONG_RANKS = "of compiled models among several ranks one was measured: FSDP2, with layers compiled one by one"
NOT_MEASURED = (
    f"compiled by torch {in_words(INSTALLED)}; real runs were compared under torch {in_words(COMPILED_AND_MEASURED)}"
)
_OBJECTS_KEPT = 2_000_000
_TRACED = "a function that is traced"
INSTEAD = (
    "TORCHDYNAMO_DISABLE=1 in the environment predicts eager code instead: the figures of a run without "
    f"torch.compile ({OFF_BY})."
)


def why_not() -> str | None:
    """What keeps compiled code from being compiled here; None where nothing does."""
    if not COMPILED_HERE[0] <= INSTALLED < COMPILED_HERE[1]:
        first, after = COMPILED_HERE
        newest = in_words((after[0], after[1] - 1))
        return f"compiled code needs torch {in_words(first)} to {newest}, and torch {in_words(INSTALLED)} is installed"
    if torch.version.cuda is None:
        return "compiled code needs a build of torch with CUDA (no GPU), and this one has none"
    if importlib.util.find_spec("triton") is None:
        return "compiled code needs Triton, which is not installed"
    return None


@functools.cache
def _leave_own_code_alone() -> None:
    """Dynamo does not compile the card's own functions. Once a process: each name makes dynamo's pattern longer."""
    from torch._dynamo import trace_rules, utils

    for name in ("vramcast.card", "vramcast.scripts", "vramcast.trace", "vramcast.allocator"):
        trace_rules.add(name)
    utils.common_constant_types.add(CardProperties)


def _look_into_stand_ins(put: Patches) -> None:
    """Dynamo looks into flash-attn as far as its operators, and so into what stands for it."""
    from torch._dynamo import trace_rules

    original = trace_rules.get_legacy_mod_inlinelist
    stand_ins = Path(__file__).parents[1] / "stand_ins"
    own = {(stand_ins / part).as_posix() for part in _LOOKED_INTO}
    put.set(trace_rules, "get_legacy_mod_inlinelist", functools.cache(lambda: original() | own))


def _fold_answers_of_the_card(put: Patches, replaced: Patches) -> None:
    """Dynamo calls some functions of torch.cuda while it traces and keeps their answers, by the function itself."""
    from torch._dynamo.variables import torch as variables

    for table in ("constant_fold_functions", "constant_fold_functions_need_guards"):
        known: dict[Any, None] = getattr(variables, table)
        own = [now for before, now in replaced.replaced() if isinstance(before, FunctionType) and before in known]
        put.set(variables, table, {**known, **dict.fromkeys(own)})


class Compiler:
    """One for each virtual card."""

    def __init__(
        self, replaced: Patches, machine: Machine, dispatch: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        """`replaced`: what the card put in place of torch's own; `dispatch`: the thread's dispatch mode."""
        self._replaced = replaced
        self._own = Patches()
        """Changes to the compilers themselves, which hold while they run."""
        self._machine = machine
        self.visibility = Visibility(replaced, dispatch)
        self._ready = False
        self._raised: list[BaseException] = []
        """What Dynamo met while it followed the function that is being compiled."""
        self._left = 0
        """Objects that were made by compiling and not looked through since."""
        self._exits = ExitStack()

    def install(self) -> None:
        """Called when the card is entered. Most is put off until something is compiled: Inductor is slow to import."""
        reason = why_not()
        if reason is not None:
            self._refuse(reason)
            return
        with quick_imports():
            from torch._dynamo import convert_frame, guards, symbolic_convert, utils
            from torch._functorch import aot_autograd

        self._exits.enter_context(quick_registrations())  # of the packages that the program imports
        _leave_own_code_alone()
        put = self._own
        _look_into_stand_ins(put)
        wrapper = convert_frame.CatchErrorsWrapper
        put.set(wrapper, "__call__", self._hidden(wrapper.__call__))
        translator = symbolic_convert.InstructionTranslatorBase
        put.set(translator, "run", self._noting_errors(translator.run))
        why = guards.get_and_maybe_log_recompilation_reasons
        put.set(convert_frame, "get_and_maybe_log_recompilation_reasons", self._in_sight(why))
        manager = guards.CheckFunctionManager
        put.set(manager, "__init__", self._guards_as_when_run(manager.__init__))
        put.set(utils, "set_torch_function_mode_stack", keeping_the_card(utils.set_torch_function_mode_stack))
        put.set(proxy_tensor._MakefxTracer, "trace", self._traced(proxy_tensor._MakefxTracer.trace))
        put.set(torch, "compile", _compiled_when_called(torch.compile))
        for name in ("construct_fake_mode", "process_inputs"):
            put.set(aot_autograd, name, self._of_aot(getattr(aot_autograd, name)))
        put.set(aot_autograd, "create_aot_state", self._until_closed(aot_autograd.create_aot_state))

    def _refuse(self, reason: str) -> None:
        def refuse(name: str) -> None:
            raise self._machine.report_unknown(
                UnknownKernel(f"{name} is compiled with torch.compile: {reason}.\n{INSTEAD}")
            )

        self._exits.enter_context(torch.compiler.set_stance("force_eager"))
        patches.refuse_compiled_code(self._own, refuse)

    def remove(self) -> None:
        with unsealed():
            self._exits.close()
        self._own.undo()
        if self._ready:
            torch._dynamo.reset()
            fake_cuda.remove()
            _forget_functions()

    def prepare(self) -> None:
        """Called before the first function is compiled."""
        if self._ready:
            return
        self._ready = True
        _forget_functions()
        if INSTALLED != COMPILED_AND_MEASURED:
            self._machine.note("torch.compile", NOT_MEASURED)
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            self._machine.note("torch.compile", AMONG_RANKS)
        with unsealed(), self.visibility.hide(), quick_imports():
            from vramcast.card.compiled import inductor, optimizers

            self._exits.enter_context(inductor.caches_of_our_own())
            # Dynamo would do so while its own frames hold the error of a graph break, and so the program's tensors: as
            # old objects, they would then be looked for again long after the step in which a real run finds them.
            self._exits.enter_context(torch._dynamo.config.patch(run_gc_after_compile=False))
            _fold_answers_of_the_card(self._own, self._replaced)
            fake_cuda.install(self._own, lambda: None)
            inductor.install(self._own, self._machine, self)
            optimizers.install(self._own, self.visibility)

    @contextmanager
    def compiling(self, what: str, *, lasting: bool = False) -> Iterator[None]:
        """Inside, the card is hidden, and what goes wrong with the compiler is not the program's fault. The compiler
        keeps what it writes in files of its own. Garbage is not looked for meanwhile, an eighth of the time; nor
        afterwards where what the compiler leaves is `lasting`."""
        if self.visibility.hidden:  # part of something that is being compiled
            yield
            return
        lazily = _use_lazy_graph_module(True)  # no graph is run as the Python code that it would be written as
        with unsealed(), self.visibility.hide(), without_collections(lasting=lasting), lazily:
            try:
                yield
            except _compiler_errors() as error:
                if isinstance(error.__cause__, torch.OutOfMemoryError):
                    raise
                raise self._machine.report_unknown(self._failed(what, error)) from error

    def _failed(self, what: str, error: Exception) -> UnknownKernel:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[:2])[:300] if lines else type(error).__name__
        return UnknownKernel(
            f"{what} could not be compiled for {self._machine.gpu.name} here ({reason}): "
            f"what it allocates is not known.\n{INSTEAD}"
        )

    def _hidden(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(callback: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
            self.prepare()
            self._raised = []
            with without_collections():
                gc.collect(1)  # of the program's garbage, before it is among what lasts
                with self.compiling(frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else "a function"):
                    compiled = original(callback, frame, cache_entry, frame_state)
                self._collect()
            return compiled

        return __call__

    def _collect(self) -> None:
        """What compiling leaves. The frames of an error and the error refer to each other, and to tensors of the
        program; else Dynamo has let go of those, and it takes longer to look for the rest than to keep it."""
        from torch._dynamo.exc import ObservedException

        self._left += gc.get_count()[0]
        handled = all(isinstance(error, ObservedException) for error in self._raised)  # by the function itself
        if handled:
            for error in self._raised:
                traceback.clear_frames(error.__traceback__)
        self._raised = []
        if self._left > _OBJECTS_KEPT:
            gc.collect()
            self._left = 0
        elif handled:
            count_anew()
        else:
            gc.collect(1)

    def _noting_errors(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def run(translator: Any) -> None:
            try:
                original(translator)
            except BaseException as error:
                self._raised.append(error)
                raise

        return run

    def _traced(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """make_fx of tensors that it makes up, where nothing is compiled: by operators that differentiate a function
        when they are run (map, scan), and by the program. C++ would ask CUDA about tensors that it differentiates. What
        runs on real tensors meanwhile comes to the card (recorded.py)."""

        @functools.wraps(original)
        def trace(tracer: Any, function: Callable[..., Any], *args: Any) -> Any:
            if tracer.tracing_mode == "real":
                return original(tracer, function, *args)
            self.prepare()
            with self.compiling(_TRACED):
                return original(tracer, function, *args)

        return trace

    def _in_sight(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Why a guard does not hold, which is found by asking all of them again."""

        @functools.wraps(original)
        def reasons(*args: Any, **kwargs: Any) -> Any:
            with self.visibility.show():
                return original(*args, **kwargs)

        return reasons

    def _of_aot(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A part of functorch's aot_function, which compiles without Dynamo."""

        @functools.wraps(original)
        def part(*args: Any, **kwargs: Any) -> Any:
            self.prepare()
            with self.compiling(_TRACED):
                return original(*args, **kwargs)

        return part

    def _until_closed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The part that opens what the later ones need: until they are done."""

        @functools.wraps(original)
        def create_aot_state(stack: ExitStack, *args: Any, **kwargs: Any) -> Any:
            stack.enter_context(self.compiling(_TRACED))
            return original(stack, *args, **kwargs)

        return create_aot_state

    def _guards_as_when_run(self, original: Callable[..., None]) -> Callable[..., None]:
        """Guards compare what they find when the function is called, and then the card is in sight. Of a tensor that
        they compare by identity they keep a text."""

        @functools.wraps(original)
        def __init__(manager: Any, f_code: Any, output_graph: Any, *args: Any, **kwargs: Any) -> None:
            from torch._dynamo.utils import get_torch_function_mode_stack

            before = output_graph.torch_function_mode_stack
            with self.visibility.show(), written_without_values():
                output_graph.torch_function_mode_stack = get_torch_function_mode_stack()
                try:
                    original(manager, f_code, output_graph, *args, **kwargs)
                finally:
                    output_graph.torch_function_mode_stack = before

        return __init__


def _compiler_errors() -> tuple[type[Exception], ...]:
    from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError
    from torch._inductor.exc import InductorError

    return (BackendCompilerFailed, InternalTorchDynamoError, InductorError)


def _compiled_when_called(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile. Libraries compile many functions that a program never calls, and the first to be compiled makes
    Dynamo import Inductor: functions are compiled when they are called."""

    @functools.wraps(original)
    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda inner: compile(inner, **options)
        if not isinstance(model, (FunctionType, MethodType)):
            with unsealed(), quick_imports():
                return original(model, **options)
        if patches.compiles_nothing(options.get("backend")):
            return model
        compiled: list[Callable[..., Any]] = []

        @functools.wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not compiled:
                with unsealed(), quick_imports():  # makes a folder for its cache
                    compiled.append(original(model, **options))
            return compiled[0](*args, **kwargs)

        # What compiled code that calls it looks into.
        call._torchdynamo_orig_callable = call._torchdynamo_inline = model  # type: ignore[attr-defined]
        return call

    return compile


def _forget_functions() -> None:
    """Dynamo's rules for functions of torch, which it looks up once: some of them are others now."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    trace_rules.get_torch_obj_rule_map.cache_clear()
    handlers: Any = TorchInGraphFunctionVariable._get_handlers
    handlers.cache_clear()
