"""Which ops make the host wait for the card."""

from __future__ import annotations

from vramcast.trace.calls import SYNCHRONIZE

# Their result's size or value is needed on the host before they return.
_READS = frozenset(
    {
        "_local_scalar_dense", "nonzero", "argwhere", "masked_select", "_unique2", "unique_dim", "unique_consecutive",
        "unique_dim_consecutive", "bincount", "equal", "allclose", "is_nonzero", "_coalesce", "nms", "_ctc_loss",
    }
)  # fmt: skip
_PRODUCTS = frozenset({"mm", "addmm", "_sparse_addmm"})
_COPIES = frozenset({"_to_copy", "copy_", "copy"})
_INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})


def waits(op: str, arguments: str) -> bool:
    """Whether the host waits, as PyTorch's own kernels do: reads of data, and copies to or from ordinary memory."""
    if op == SYNCHRONIZE:
        return True
    name = op.split(".")[1] if "." in op else op
    on_card = arguments.count("(") > arguments.count("cpu:")
    if name in _READS:
        return on_card
    if name in _PRODUCTS:
        return "sparse_coo" in arguments  # it is coalesced first: how many elements are left?
    if name in _COPIES:
        from_host = "cpu:" in arguments and ("device=cuda" in arguments or on_card)
        to_host = on_card and "device=cpu" in arguments
        return (from_host or to_host) and not _is_non_blocking(name, arguments)
    if name in _INDEXING:
        # A mask becomes indices first, and their number must be known. A number of the host's is written through a mask
        # by a fill, and copied to the card for indices. Indices of the host are copied to the card, too.
        _, _, rest = arguments.partition("[")
        indices, _, value = rest.partition("]")
        return on_card and (("b8(" in indices) != value.startswith(", cpu:") or "cpu:" in indices)
    return name == "repeat_interleave" and op.endswith(".Tensor") and "output_size" not in arguments


def _is_non_blocking(name: str, arguments: str) -> bool:
    return "non_blocking=True" in arguments or (name == "copy_" and arguments.endswith(", True"))
