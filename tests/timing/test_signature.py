"""Arguments of an operator, read back from their text."""

from __future__ import annotations

import pytest

from vramcast.timing.costs.signature import Tensor, parse_arguments


def test_tensors_scalars_lists_and_names() -> None:
    read = parse_arguments(
        "bf16(4,8){1,4}, [f32(2), None, [1, 2]], 0.5, True, None, cpu:i64(), dtype=float32, dims=[0, 1]"
    )
    assert read.args == (
        Tensor("bf16", (4, 8), (1, 4)),
        [Tensor("f32", (2,)), None, [1, 2]],
        0.5,
        True,
        None,
        Tensor("i64", (), device="cpu"),
    )
    assert read.kwargs == {"dtype": "float32", "dims": [0, 1]}
    assert [tensor.dtype for tensor in read.tensors] == ["bf16", "f32", "i64"]


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("", ()),
        ("[]", ([],)),
        ("[[], [3]]", ([[], [3]],)),
        ("adam, -1, 1e-05, -inf", ("adam", -1, 1e-05, float("-inf"))),
        ("f32(0)", (Tensor("f32", (0,)),)),
        ("f32(9,4)sparse_coo", (Tensor("f32", (9, 4), sparse=True),)),
        ("float8_e4m3fn(16,16)", (Tensor("float8_e4m3fn", (16, 16)),)),
        ("ScriptObject", ("ScriptObject",)),
    ],
)
def test_odd_texts(text: str, args: tuple[object, ...]) -> None:
    assert parse_arguments(text).args == args


def test_a_text_cut_short_is_read_as_far_as_it_goes() -> None:
    assert parse_arguments("[f32(2), f32(3").tensors == [] or parse_arguments("[f32(2), f32(3").args == ()


def test_bytes_count_distinct_elements() -> None:
    expanded = Tensor("f32", (8, 128, 64), (0, 64, 1))
    assert expanded.numel == 8 * 128 * 64
    assert expanded.nbytes == 128 * 64 * 4


def test_order_and_density() -> None:
    last = Tensor("f16", (2, 3, 4, 5), (60, 1, 15, 3))
    assert last.dense
    assert last.order == (0, 2, 3, 1)
    sliced = Tensor("f32", (10, 8), (16, 1))
    assert not sliced.dense
    assert Tensor("f32", (10, 8)).order == (0, 1)


def test_the_text_of_real_arguments_reads_back() -> None:
    torch = pytest.importorskip("torch")
    from vramcast.features.measure.op_record import describe_arguments

    x = torch.empty(4, 6, dtype=torch.bfloat16).t()
    read = parse_arguments(describe_arguments([x, [1, 2], 0.25, None], {"dtype": torch.float16, "flag": True}))
    assert read.args == (Tensor("bf16", (6, 4), (1, 6), "cpu"), [1, 2], 0.25, None)
    assert read.kwargs == {"dtype": "float16", "flag": True}
