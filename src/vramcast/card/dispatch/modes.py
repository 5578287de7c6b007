"""Every op the program runs passes here, below autograd: run it without data and book what CUDA would allocate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily

from vramcast.card.device.patches import Patches
from vramcast.card.dispatch import host_ops, origins
from vramcast.card.dispatch.arguments import (
    booked_block,
    cards_of,
    goes_between_cards,
    has_own_dispatch,
    has_sparse,
    is_composite,
    refuse_overwritten,
    tensors_of,
    wants_meta,
)
from vramcast.card.dispatch.first_calls import FirstCalls, is_view
from vramcast.card.dispatch.known_calls import KnownCall, KnownCalls, make_tensor
from vramcast.card.dispatch.ledger import Ledger
from vramcast.card.dispatch.op_log import OpLog
from vramcast.card.dispatch.recorded import record, recorder
from vramcast.card.dispatch.storages import ATTRIBUTE, GPU, HOST, Block, known_values, sparse_parts
from vramcast.card.dispatch.unknown import in_words_of_cuda, no_rule
from vramcast.card.ops import Call, OutCall, kernel_for
from vramcast.card.ops.sparse import sparse_rule
from vramcast.card.values import computing
from vramcast.card.values import known_values as values
from vramcast.card.values.random_numbers import draws

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any], KnownCall | None], Any]
"""Takes an op, its arguments, and what is known of such a call where that was looked up already."""

REAL = -1
"""Neither on the card nor virtual host memory: ordinary CPU tensors, or the user's own meta tensors."""

_BEFORE_OPERATOR = {
    "graphsafe_run_with_rng_state": 0, "run_and_save_rng_state": 0, "run_with_rng_state": 1, "run_dtensor_rng_op": 2,
}  # fmt: skip
"""Operators that run another one with random numbers of a state of their own: their arguments in front of it."""
_META = torch.device("meta")
_Tensor = torch.Tensor


def install(put: Patches) -> None:
    if not hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        operator = torch._ops.HigherOrderOperator
        put.set(operator, "dispatch", _reaching_the_card(operator.dispatch))


def _reaching_the_card(original: Callable[..., Any]) -> Callable[..., Any]:
    """Older torch refuses higher-order operators under a mode that it has no rule for; newer torch hands them over."""

    def dispatch(operator: Any, key: Any, /, *args: Any, **kwargs: Any) -> Any:
        if key == torch._C.DispatchKey.Python:
            mode = _get_current_dispatch_mode()
            if isinstance(mode, DispatchMode) and type(mode) not in operator.python_key_table:
                with _pop_mode_temporarily():
                    return mode.__torch_dispatch__(operator, [], args, kwargs)
        return original(operator, key, *args, **kwargs)

    return dispatch


class DispatchMode(TorchDispatchMode):
    """Sees each op once (composites already taken apart) and decides what it allocates."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that would add costs more than the handler itself

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else nothing is compiled while this mode is on

    def __init__(self, ledger: Ledger, machine: Any) -> None:
        super().__init__()
        self.ledger = ledger
        self.machine = machine
        self.target: int | None = None
        """Where the factory function now running was told to put its result (set by the function mode)."""
        self.functions: TorchFunctionMode | None = None
        """The function mode, once there is one."""
        self.calls = KnownCalls()
        # By address, since to hash an op takes Python code of torch's; `_ops` keeps each alive.
        self._ops: list[Any] = []
        self._handlers: dict[int, Handler] = {}
        self._op_ids: dict[int, int] = {}
        self._views: set[int] = set()
        self._note_recipe = machine.guesses.note
        self._note_written = machine.guesses.note_written
        self._log: OpLog = machine.op_log
        self._first_calls = FirstCalls(ledger)
        self._first_calls_on = [self._first_calls]
        """On each card that the process uses."""
        self._card_used = False
        """Until then ops are of no step, and are not logged: models may be initialized by thousands on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for kind in types:
            if has_own_dispatch(kind):
                # A FakeTensor belongs to somebody who works shapes out, and takes no memory.
                return func(*args, **(kwargs or {})) if issubclass(kind, FakeTensor) else NotImplemented
        kwargs = kwargs or {}
        if (tracing := recorder()) is not None:
            return record(tracing, self, func, types, args, kwargs)
        handler = self._handlers.get(id(func))
        if handler is None:
            if isinstance(func, torch._ops.HigherOrderOperator):
                return self._higher_order(func, args, kwargs)
            handler = self._prepare(func)
        if self.ledger.several_cards:
            self._choose_card(func, args, kwargs)
        if self.ledger.sparse_seen and has_sparse(args, kwargs):
            handler = self._sparse
        log = self._log
        counted = log.python.started and log.python.stop()
        with torch._C.DisableTorchFunction():
            if self.ledger.overwritten_seen and not is_view(func):
                refuse_overwritten(args)
            try:
                if self.machine.position.node_streams.several:
                    self.machine.note_gradients_of_other_streams(args)
                if not self._card_used:
                    out = handler(func, args, kwargs, self._known(func, args, kwargs))
                    if not self.ledger.builder.count_events():
                        return out
                    self._card_used = True
                    if log.on:
                        log.note(log.number(func, args, kwargs, None), args)
                elif log.on:
                    known = self.calls.of(func, args, kwargs)
                    number = log.number(func, args, kwargs, known)
                    out = handler(func, args, kwargs, known)
                    log.note(number, args)
                else:
                    out = handler(func, args, kwargs, self._known(func, args, kwargs))
                if self._first_calls.awaited and id(func) not in self._first_calls.passed:
                    self._first_calls.note(func, args, kwargs, out)
                return out
            except NotImplementedError as error:
                if self.device_of(args, kwargs) != GPU:
                    raise
                raise self.machine.report_unknown(no_rule(func, args)) from error
            except RuntimeError as error:
                if "nested" in func._schema.name:  # torch mixes devices there itself
                    raise self.machine.report_unknown(no_rule(func, args)) from error
                told = in_words_of_cuda(error)
                self.machine.note_failed_op(told)
                try:
                    raise told from error.__cause__
                finally:
                    del told  # its traceback keeps this frame, which would keep it and the op's tensors
            finally:
                if counted:
                    log.python.start()

    def _known(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> KnownCall | None:
        """What is known of a call where no log asks for it: not of views, nor of what mostly runs on the host."""
        if not args or id(func) in self._views:
            return None
        first = args[0]
        return self.calls.of(func, args, kwargs) if isinstance(first, _Tensor) and first.is_meta else None

    def _prepare(self, func: Any) -> Handler:
        self._ops.append(func)
        self._op_ids[id(func)] = self.ledger.builder.intern_op(str(func).removesuffix(".default"))
        handler = self._choose(func)
        self._handlers[id(func)] = handler
        return handler

    def _choose(self, func: Any) -> Handler:
        handler = self._of_kind(func)
        if draws(func):
            handler = self._after_earlier_draws(handler)
        return computing.beside(self, func, handler) if values.are_of_all_sizes() else handler

    def _after_earlier_draws(self, handler: Handler) -> Handler:
        """Real numbers come from the host's generator: weights without data take theirs before."""

        def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None) -> Any:
            in_place_with_data = bool(args) and isinstance(args[0], _Tensor) and not args[0].is_meta
            if in_place_with_data or self.device_of(args, kwargs) == REAL:
                self.machine.host_draws.settle()
            return handler(func, args, kwargs, known)

        return run

    def _of_kind(self, func: Any) -> Handler:
        kernel = kernel_for(func)
        if isinstance(func, torch._ops.OpOverload) and any(a.is_out for a in func._schema.arguments):
            return self._into_outs(func, kernel)
        return self._without_kernel(func) if kernel is None else self._with_kernel(func, kernel)

    def _without_kernel(self, func: Any) -> Handler:
        name = func._schema.name
        if not isinstance(func, torch._ops.OpOverload):
            return self._functional
        if is_composite(func):
            return self._composite
        returns = func._schema.returns
        if any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments):
            if name.startswith(("aten::_foreach_", "aten::_fused_")):
                return self._foreach_in_place
            return self._in_place
        if returns and all(r.alias_info is not None for r in returns):
            self._views.add(id(func))
            return _view(func)
        return self._functional

    # -- the kinds of op ------------------------------------------------------------------------------------

    def _composite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None) -> Any:
        """A function of other ops, which autograd takes apart before they come here; in inference mode it does not."""
        if self.device_of(args, kwargs) == REAL and not wants_meta(kwargs):
            return func(*args, **kwargs)
        with torch._C._EnableTorchFunction(), self:
            return self._take_apart(func, args, kwargs)

    def _take_apart(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Decompose an op by our own function where there is one (composites.py), else by PyTorch's."""
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "Meta"):
            return func._op_dk(torch._C.DispatchKey.Meta, *args, **kwargs)
        return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)

    def _higher_order(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Control flow and FlexAttention, as they run where nothing is compiled: their parts come here again."""
        if func.name() in _BEFORE_OPERATOR:
            return self._with_random_state(func.name(), args, kwargs)
        kernel = func.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        if kernel is None:
            raise self.machine.report_unknown(no_rule(f"higher_order::{func.name()}", args))
        module = sys.modules[kernel.__module__]
        # Some kernels refuse to run while there is a mode.
        with self._of_parts(), patch.object(module, "_get_current_dispatch_mode", lambda: None, create=True):
            return kernel(*args, **kwargs)

    @contextmanager
    def _of_parts(self) -> Iterator[None]:
        """Around what a higher-order operator calls: tensors that are made there come to the card as any others."""
        with ExitStack() as modes:
            modes.enter_context(self)
            if self.functions is not None and self.functions not in _get_current_function_mode_stack():
                modes.enter_context(self.functions)
            yield

    def _with_random_state(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An op that checkpointing repeats with the random numbers of its first run, or that fills the part of a tensor
        that a rank has; the state lies on the host."""
        op, *rest = args[_BEFORE_OPERATOR[name] :]
        given = {key: value for key, value in kwargs.items() if key != "rng_state"}
        with self._of_parts():
            out = op(*rest, **given)
        return (torch.zeros(16, dtype=torch.uint8, device="cpu"), out) if name == "run_and_save_rng_state" else out

    def _functional(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None) -> Any:
        device = self._device(args, kwargs, known)
        if device == REAL and not wants_meta(kwargs):
            return func(*args, **kwargs)
        if device == HOST:
            args, kwargs = host_ops.host_arguments(args, kwargs)
            known = None
        self.enter(func)
        try:
            out = self.make(func, args, kwargs, device, known)
        except NotImplementedError:
            if device == HOST:
                self.machine.host_draws.settle()
                return host_ops.run_for_real(func, args, kwargs)
            raise self.machine.report_unknown(no_rule(func, args)) from None
        self._note_recipe(func, args, kwargs, out, known)
        return out

    def make(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: int, known: KnownCall | None = None
    ) -> Any:
        """What an op's own meta kernel gives, its new storages booked, known values carried on."""
        if known is not None and known.booked is not None and device == GPU:
            out = make_tensor(known.made)
            self.ledger.book_again(out.untyped_storage(), *known.booked)
        else:
            out = self.calls.run(func, args, kwargs, known)
            self.adopt(out, device)
            if known is not None and known.made is not None and isinstance(out, _Tensor) and device == GPU:
                known.booked = (out.untyped_storage().nbytes(), self.ledger.shape_id(out))
        if known is None or not known.without_contents:
            values.propagate(self, func, args, kwargs, out)
        return out

    def _in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None) -> Any:
        device = self._device(args, kwargs, known)
        if device == REAL:
            return func(*args, **kwargs)
        if device == HOST:
            if not args[0].is_meta:
                return host_ops.write_for_real(self.machine, func, args, kwargs, args[:1])
            args, kwargs = host_ops.host_arguments(args, kwargs)
            known = None
        self.enter(func)
        out = self.run_in_place(func, args, kwargs, device, known)
        if device == HOST and draws(func) and known_values(args[0]) is None:
            self.machine.host_draws.skip(func, args, kwargs)
        self._note_written(func, args, kwargs, known)
        return out

    def run_in_place(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: int, known: KnownCall | None = None
    ) -> Any:
        try:
            out = self.calls.run_in_place(func, args, kwargs, known)
        except NotImplementedError:
            if func.namespace != "aten":
                raise self.machine.report_unknown(no_rule(func, args)) from None
            out = args[0]
        self.adopt(out, device)
        values.update_in_place(self, func, args, kwargs)
        return out

    def _foreach_in_place(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None
    ) -> Any:
        tensors = args[0]
        if not tensors or not tensors[0].is_meta:
            return func(*args, **kwargs)
        for tensor in tensors:
            values.forget(tensor)
        return None

    def _with_kernel(self, func: Any, kernel: Callable[[Call], Any]) -> Handler:
        plain, is_mutable = self._without_kernel(func), func._schema.is_mutable
        for_host = host_ops.holds_on_host(kernel)
        for_data = host_ops.holds_for_data(kernel)

        def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None) -> Any:
            device = self._device(args, kwargs, known)
            if device == REAL and not for_data and not wants_meta(kwargs):
                return func(*args, **kwargs)
            if device == HOST and not for_host:
                return plain(func, args, kwargs, known)
            self.enter(func)
            out = kernel(Call(self, func, args, kwargs, device, known))
            if is_mutable:
                self._note_written(func, args, kwargs, known)
            else:
                self._note_recipe(func, args, kwargs, out, known)
            return out

        return run

    def _sparse(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None) -> Any:
        """An op with a sparse argument: only rules know what it makes, see kernels.sparse."""
        device = self.device_of(args, kwargs)
        if device == REAL and not wants_meta(kwargs):
            return func(*args, **kwargs)
        try:
            rule = sparse_rule(func)
            if rule is None:
                return self._handlers[id(func)](func, args, kwargs, known)
            self.enter(func)
            return rule(Call(self, func, args, kwargs, device))
        except (LookupError, NotImplementedError):
            raise self.machine.report_unknown(no_rule(func, args)) from None

    def _into_outs(self, func: Any, kernel: Callable[[Call], Any] | None) -> Handler:
        """`out=`: tensors that are given, and made larger where they are too small. A rule for the op says what it
        takes beside them."""
        names = [a.name for a in func._schema.arguments if a.is_out]

        def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None) -> Any:
            device = self._device(args, kwargs, known)
            if device == REAL:
                return func(*args, **kwargs)
            outs = [kwargs[name] for name in names]
            if device == HOST:
                if not all(out.is_meta for out in tensors_of(outs)):
                    return host_ops.write_for_real(self.machine, func, args, kwargs, tensors_of(outs))
                args, kwargs = host_ops.host_arguments(args, kwargs)
            self.enter(func)
            sized = True
            try:
                func(*args, **kwargs)
            except (NotImplementedError, TypeError):  # no meta kernel, or one for another overload
                if kernel is None or device == HOST:
                    raise self.machine.report_unknown(no_rule(func, args)) from None
                sized = False
            if sized:
                self.adopt(outs, device)
            if kernel is not None and device == GPU:
                call = OutCall(self, func, args, kwargs, device, tensors_of(outs), sized=sized)
                call.finish(kernel(call))
            values.update_outs(func, args, kwargs, names)
            self._note_written(func, tensors_of(outs), {})
            return _as_returned(func, outs)

        return run

    # -- several cards --------------------------------------------------------------------------------------

    def _choose_card(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An op runs on the card of its arguments; one that makes a tensor from none, where it was told to or where
        the last op ran."""
        ledger = self.ledger
        if not (self.target == GPU and kwargs.get("device") == _META):
            with torch._C.DisableTorchFunction():
                cards = dict.fromkeys(cards_of((*args, *kwargs.values())))
            if cards:
                card, *others = cards
                if others and not goes_between_cards(func):
                    raise RuntimeError(
                        "Expected all tensors to be on the same device, but found at least two devices, "
                        f"cuda:{card} and cuda:{others[0]}! (when checking {func._schema.name})"
                    )
                ledger.use_card(card)
        while len(self._first_calls_on) < len(ledger.cards):
            self._first_calls_on.append(FirstCalls(ledger))
        self._first_calls = self._first_calls_on[ledger.place]

    # -- helpers --------------------------------------------------------------------------------------------

    def enter(self, func: Any) -> None:
        """Say which op is running; its module and phase come from the program's position."""
        ledger = self.ledger
        ledger.op = self._op_ids[id(func)]
        self.machine.locate(ledger)

    def _device(self, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None) -> int:
        """Where such a call ran before, unless a factory function was told where."""
        if known is None or self.target is not None:
            return self.device_of(args, kwargs)
        if known.device is None:
            known.device = self.device_of(args, kwargs)
        return known.device

    def device_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Where the op runs: GPU as soon as one argument is on the card."""
        if self.target is not None and kwargs.get("device") == _META:
            return self.target
        device = None
        seen = False
        for arg in args:
            if isinstance(arg, _Tensor):
                seen = True
                block = booked_block(arg)
                if block is not None:
                    if block.device == GPU:
                        return GPU
                    device = HOST
            elif isinstance(arg, (list, tuple)):
                for item in arg:
                    if isinstance(item, _Tensor):
                        seen = True
                        block = booked_block(item)
                        if block is not None:
                            if block.device == GPU:
                                return GPU
                            device = HOST
        for arg in kwargs.values():
            if isinstance(arg, _Tensor):
                seen = True
                block = booked_block(arg)
                if block is not None:
                    if block.device == GPU:
                        return GPU
                    device = HOST
        if device is not None:
            return device
        if kwargs.get("device") == _META and (not seen or self.machine.position.backward_depth):
            if not seen and origins.is_for_host():
                return HOST
            return GPU  # made inside an op or a backward formula from a tensor of the card, or moved back to it
        return REAL

    def adopt(self, out: Any, device: int) -> None:
        """Book the storages an op has made; those it was given are booked already."""
        if isinstance(out, _Tensor):
            if device != REAL:
                self.adopt_tensor(out, device)
        elif isinstance(out, (list, tuple)):
            for item in out:
                self.adopt(item, device)

    def adopt_tensor(self, tensor: torch.Tensor, device: int) -> Block | None:
        if not tensor.is_meta:
            return None
        if tensor.layout is not torch.strided:
            self.ledger.sparse_seen = True
            for part in sparse_parts(tensor):
                self.adopt_tensor(part, device)
            return None
        storage = tensor.untyped_storage()
        block: Block | None = storage.__dict__.get(ATTRIBUTE)
        if block is None:
            block = self.ledger.book(storage, device, tensor)
        elif block.nbytes != storage.nbytes():  # resize_, or `out=` that was too small
            try:
                self.ledger.resize(block, storage.nbytes(), tensor)
            except torch.OutOfMemoryError:
                storage.resize_(block.nbytes)  # as it was
                raise
        return block


def _as_returned(func: Any, outs: list[Any]) -> Any:
    if not func._schema.returns:  # foreach ops
        return None
    return tuple(outs) if len(outs) > 1 else outs[0]


def _view(func: Any) -> Handler:
    """Call the op without the Python layer that torch puts around it; a view books nothing."""
    call = getattr(func, "_op", func)

    def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None) -> Any:
        return call(*args, **kwargs)

    return run
