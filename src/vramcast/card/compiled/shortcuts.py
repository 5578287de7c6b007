"""Work of the compilers that does not change what they generate, left out so that a prediction is quicker."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch._library import utils as library
from torch.fx import GraphModule

from vramcast.base.factories import without_collections
from vramcast.card.compiled import min_cut

if TYPE_CHECKING:
    from vramcast.card.compiled.visibility import Visibility
    from vramcast.card.device.patches import Patches


@contextmanager
def quick_imports() -> Iterator[None]:
    """Inside, torch imports its compilers. Each of their ops would look up the line that it is registered in, for
    messages."""
    original = library.get_source
    library.get_source = lambda stacklevel: "unknown"
    try:
        with without_collections():
            yield
    finally:
        library.get_source = original


def install(put: Patches, visibility: Visibility) -> None:
    _cache_keys(put)
    _dtype_rules(put)
    _symbols(put)
    _operators(put)
    _cuts(put)
    _printed_graphs(put, visibility)


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

    put.set(GraphModule, "print_readable", print_readable)
