"""Which products, factorisations and norms of made-up numbers are worked out for real: those that cost little.

What follows from them then holds as it does on a card: A @ A.T has a Cholesky factor, Q.T @ Q is the identity, a
network evaluated at a nearby point gives a nearby result. Larger ones count as made by a layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_MOST_ELEMENTS = 1 << 17
"""The most elements that may go into an op, and come out of it."""
_MOST_PRODUCTS = 1 << 24
_PRODUCTS_LIKE_AN_ELEMENT = 8
"""A library multiplies and adds this many numbers while an elementwise op takes one."""

OPS = frozenset((
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "_cdist_forward", "cholesky", "cholesky_inverse",
    "cholesky_solve", "cummax", "cummin", "cumprod", "diag_embed", "dot", "_euclidean_dist", "kthvalue",
    "linalg_cholesky_ex", "linalg_cross", "_linalg_det", "linalg_eig", "_linalg_eigh", "linalg_householder_product",
    "linalg_inv_ex", "linalg_ldl_factor_ex", "linalg_lstsq", "linalg_lu", "linalg_lu_factor_ex", "linalg_lu_solve",
    "linalg_matrix_exp", "linalg_pinv", "linalg_qr", "_linalg_slogdet", "_linalg_solve_ex", "linalg_solve_triangular",
    "_linalg_svd", "logcumsumexp", "logsumexp", "lu_unpack", "median", "mm", "mv", "nanmedian", "native_group_norm",
    "native_layer_norm", "searchsorted", "std", "std_mean", "triangular_solve", "var", "var_mean", "vdot",
))  # fmt: skip

_PRODUCTS = frozenset(("addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "dot", "mm", "mv", "vdot"))


def work(name: str, args: Iterable[Any], out: Any) -> int | None:
    """What the op costs, in elements of an elementwise op; None where it is too much."""
    given = [arg for arg in args if isinstance(arg, torch.Tensor)]
    going_in = 0
    for tensor in given:
        going_in += tensor.numel()
    if going_in > _MOST_ELEMENTS:
        return None
    made = [item for item in (out if isinstance(out, (list, tuple)) else (out,)) if isinstance(item, torch.Tensor)]
    elements = max(going_in, sum(tensor.numel() for tensor in made))
    if elements > _MOST_ELEMENTS or not given or not made:
        return None
    if name in _PRODUCTS:
        products = made[0].numel() * (given[-1].size(0 if given[-1].dim() < 3 else 1) if given[-1].dim() else 1)
    elif "linalg" in name or "cholesky" in name or "lu_" in name:
        products = 10 * elements * max(max(tensor.shape[-2:], default=1) for tensor in given)
    else:
        products = elements
    return None if products > _MOST_PRODUCTS else elements + products // _PRODUCTS_LIKE_AN_ELEMENT
