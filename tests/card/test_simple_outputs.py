"""Outputs by rule are those of torch's own meta kernels."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from vramcast.card.dispatch.simple_outputs import SimpleOutputs

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def spec(out: torch.Tensor) -> Any:
    return tuple(out.shape), out.stride(), out.dtype


@pytest.mark.parametrize(
    ("func", "rest"),
    [
        (aten.add.Tensor, None),
        (aten.mul.Tensor, None),
        (aten.mul.Tensor, 0.5),
        (aten.div.Tensor, 2),
        (aten.pow.Tensor_Scalar, 2),
        (aten.eq.Tensor, None),
        (aten.tanh.default, ()),
        (aten.gelu.default, ()),
        (aten.where.self, "where"),
    ],
)
def test_elementwise_ops_learn_their_dtype_and_keep_the_shape(func: Any, rest: Any) -> None:
    simple = SimpleOutputs()
    for left, right in itertools.product(DTYPES, DTYPES):
        for shape in ((3, 4), (7,), (2, 1, 5), (6, 4)):
            x, y = tensor(*shape, dtype=left), tensor(*shape, dtype=right)
            args: tuple[Any, ...] = (x, y) if rest is None else (x, rest) if rest != () else (x,)
            if rest == "where":
                args = (tensor(*shape, dtype=torch.bool), x, y)
            try:
                out = func(*args)
            except (RuntimeError, NotImplementedError):
                assert simple.known(func, args, {}) is None
                continue
            known = simple.known(func, args, {})
            assert known is None or known == spec(out)
            simple.learn(func, args, {}, out)
            assert simple.known(func, args, {}) == spec(out)


def test_tensors_that_are_not_dense_or_not_alike_are_left_to_torch() -> None:
    simple = SimpleOutputs()
    x = tensor(4, 6)
    simple.known(aten.add.Tensor, (x, x), {})
    simple.learn(aten.add.Tensor, (x, x), {}, x + x)
    assert simple.known(aten.add.Tensor, (tensor(3, 5), tensor(3, 5)), {}) == ((3, 5), (5, 1), torch.float32)
    for args in ((x.t(), x.t()), (x, tensor(6)), (x, tensor()), (tensor(), tensor()), (x, torch.zeros(4, 6))):
        assert simple.known(aten.add.Tensor, args, {}) is None
    assert simple.known(aten.add.Tensor, (x, x), {"alpha": 2}) is None


def test_matrix_products() -> None:
    simple = SimpleOutputs()
    for dtype, transposed in itertools.product((torch.float32, torch.bfloat16), (False, True)):
        left, right, bias = tensor(3, 4, dtype=dtype), tensor(4, 5, dtype=dtype), tensor(5, dtype=dtype)
        if transposed:
            left, right = tensor(4, 3, dtype=dtype).t(), tensor(5, 4, dtype=dtype).t()
        assert simple.known(aten.mm.default, (left, right), {}) == spec(aten.mm.default(left, right))
        made = aten.addmm.default(bias, left, right)
        assert simple.known(aten.addmm.default, (bias, left, right), {}) == spec(made)
        batches = left.expand(2, 3, 4), right.expand(2, 4, 5)
        assert simple.known(aten.bmm.default, batches, {}) == spec(aten.bmm.default(*batches))
    for wrong in (
        (tensor(3, 4), tensor(5, 4)),
        (tensor(3, 4), tensor(4, 5, dtype=torch.bfloat16)),
        (tensor(1, 4), tensor(4, 5)),
    ):
        assert simple.known(aten.mm.default, wrong, {}) is None
