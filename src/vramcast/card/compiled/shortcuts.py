"""Work of the compilers that does not change what they generate, left out so that a prediction is quicker."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from torch.fx import GraphModule

from vramcast.base.torch_versions import COMPILED_AND_MEASURED
from vramcast.card.compiled import fake_cache, min_cut, static_sizes
from vramcast.card.compiled.quick_imports import altered
from vramcast.card.device.installed_torch import INSTALLED

if TYPE_CHECKING:
    from vramcast.card.compiled.visibility import Visibility
    from vramcast.card.device.patches import Patches


def install(put: Patches, visibility: Visibility) -> None:
    _cache_keys(put)
    _dtype_rules(put)
    _symbols(put)
    static_sizes.install(put)
    fake_cache.install(put)
    _units(put)
    _texts(put)
    _bounds(put)
    _wrapped_maps(put)
    _operators(put)
    _cuts(put)
    _printed_graphs(put, visibility)
    _settings(put)


def _cache_keys(put: Patches) -> None:
    """Keys of caches that are switched off: Triton's would be a hash of all its files, and start ptxas."""
    import torch.utils._triton as has_triton
    from torch._inductor.runtime import triton_compat

    put.set(has_triton, "triton_hash_with_backend", lambda: "virtual card")
    put.set(triton_compat, "triton_key", lambda: "virtual card")


def _dtype_rules(put: Patches) -> None:
    """A table with a rule for each op, which every kernel and every load makes anew for the one object that has it."""
    from torch._inductor.dtype_propagation import DtypePropagationOpsHandler as Handler
    from torch._inductor.utils import op_dtype_propagation_rules

    original = Handler.__init__
    made_for: list[int] = []

    def __init__(handler: Any) -> None:
        known = len(op_dtype_propagation_rules)
        if made_for != [known]:
            original(handler)
            made_for[:] = [known]

    put.set(Handler, "__init__", __init__)


def _symbols(put: Patches) -> None:
    """Sizes that a node depends on: none where no size of the graph varies."""
    from torch._inductor import scheduler
    from torch._inductor.virtualized import V
    from torch.utils._ordered_set import OrderedSet

    original = scheduler.get_scheduler_node_symbol_uses

    @functools.wraps(original)
    def get_scheduler_node_symbol_uses(node: Any) -> Any:
        if not V.graph.sizevars.shape_env.var_to_range:
            return OrderedSet()
        return original(node)

    put.set(scheduler, "get_scheduler_node_symbol_uses", get_scheduler_node_symbol_uses)


def _units(put: Patches) -> None:
    """Sizes are simplified by sympy, which then imports its tables of physical units: no size has one."""
    import sympy  # type: ignore[import-untyped]

    original = sympy.simplify

    class Quantity(sympy.Basic):  # type: ignore[misc]
        """Stands for sympy's, of which there is none."""

    units = ModuleType(_UNITS)
    units.Quantity = Quantity  # type: ignore[attr-defined]
    without = {"sympy.physics": ModuleType("sympy.physics"), _UNITS: units}

    @functools.wraps(original)
    def simplify(expr: Any, *args: Any, **options: Any) -> Any:
        if sys.modules.keys() & without.keys():
            return original(expr, *args, **options)
        sys.modules.update(without)
        try:
            return original(expr, *args, **options)
        finally:
            for name in without:
                del sys.modules[name]

    put.set(sympy, "simplify", simplify)


_UNITS = "sympy.physics.units"


def _texts(put: Patches) -> None:
    """Indices and lines of the program as text, each of which is asked for again and again; and what is written only
    into logs and comments."""
    from torch._dynamo import output_graph, symbolic_convert
    from torch._inductor import ops_handler, utils

    put.set(ops_handler, "sympy_str", functools.cache(utils.sympy_str))
    put.set(output_graph, "traceback", altered(traceback, StackSummary=_Lines))
    if not any(os.environ.get(name) for name in ("TORCH_LOGS", "TORCH_TRACE", "TORCH_COMPILE_DEBUG")):
        put.everywhere("get_kernel_metadata", utils.get_kernel_metadata, lambda *_: ("", ""))
        if hasattr(symbolic_convert, "get_funcname"):
            put.set(symbolic_convert, "get_funcname", lambda filename, line: None)


class _Lines(traceback.StackSummary):
    """A stack whose frames are put into words once."""

    @classmethod
    def from_list(cls, frames: Any) -> _Lines:
        return cls(frames)

    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **options: Any) -> str:
        frame = frame_summary
        place = (frame.filename, frame.lineno, frame.name, frame.colno, frame.end_lineno, frame.end_colno)
        if place not in self._known:
            self._known[place] = super().format_frame_summary(frame, **options)
        return self._known[place]

    _known: ClassVar[dict[Any, str]] = {}


def _bounds(put: Patches) -> None:
    """Between what an index lies, which kernels of many layers ask alike."""
    from torch._inductor import bounds
    from torch._inductor.virtualized import V
    from torch.utils._sympy import value_ranges

    original = value_ranges.bound_sympy
    known: dict[Any, Any] = {}

    @functools.wraps(original)
    def bound_sympy(expr: Any, ranges: Any = None) -> Any:
        if ranges is None or not hasattr(expr, "free_symbols") or V.graph.sizevars.shape_env.var_to_range:
            return original(expr, ranges)
        key = (expr, *((symbol, ranges.get(symbol)) for symbol in sorted(expr.free_symbols, key=str)))
        if key not in known:
            known[key] = original(expr, ranges)
        return known[key]

    put.set(bounds, "bound_sympy", bound_sympy)


def _wrapped_maps(put: Patches) -> None:
    """Whether a function is local_map's: not where nobody has imported that."""
    from torch._dynamo.variables import higher_order_ops

    variable = getattr(higher_order_ops, "LocalMapWrappedHigherOrderVariable", None)
    if variable is None:
        return
    original = variable.should_wrap_in_hop

    def should_wrap_in_hop(cls: Any, value: Any) -> bool:
        return "torch.distributed.tensor.experimental._func_map" in sys.modules and original(value)

    put.set(variable, "should_wrap_in_hop", classmethod(should_wrap_in_hop))


def _operators(put: Patches) -> None:
    """Whether a function is one of Python's operators, for which each asker makes a table of them."""
    from torch._inductor import graph

    asked = getattr(graph, "is_magic_method", None)  # later versions ask in another way
    if asked is not None:
        put.set(graph, "is_magic_method", functools.cache(asked))


def _cuts(put: Patches) -> None:
    import networkx  # type: ignore[import-untyped]

    put.set(networkx, "minimum_cut", min_cut.quicker(networkx.minimum_cut))


def _printed_graphs(put: Patches, visibility: Visibility) -> None:
    """Graphs as text, which torch makes for its logs and caches even where neither is on."""
    if os.environ.get("TORCH_LOGS") or os.environ.get("TORCH_TRACE"):
        return
    original = GraphModule.print_readable

    @functools.wraps(original)
    def print_readable(self: Any, print_output: bool = True, *args: Any, **options: Any) -> Any:
        if not print_output and visibility.hidden:
            return ""
        return original(self, print_output, *args, **options)

    from torch._dynamo.repro import after_aot

    put.set(GraphModule, "print_readable", print_readable)
    put.set(after_aot, "save_graph_repro", lambda *_, **__: None)


def _settings(put: Patches) -> None:
    """The compilers' settings, of which each is looked up thousands of times: most have their default, or were set."""
    from torch.utils import _config_module as settings

    if INSTALLED != COMPILED_AND_MEASURED:  # later versions keep them in another way
        return
    module, unset = settings.ConfigModule, settings._UNSET_SENTINEL
    original = module.__getattr__

    @functools.wraps(original)
    def __getattr__(config: Any, name: str) -> Any:
        entry = config._config.get(name)
        if entry is None or entry.hide or entry.alias is not None or entry.env_value_force is not unset:
            return original(config, name)
        if entry.user_override is not unset:
            return entry.user_override
        if entry.env_value_default is not unset or entry.justknob is not None or isinstance(entry.default, _COPIED):
            return original(config, name)
        return entry.default

    put.set(module, "__getattr__", __getattr__)


_COPIED = (list, set, dict)
