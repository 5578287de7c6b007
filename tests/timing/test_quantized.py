"""Operators on packed weights, and those of which nothing is known, take as long as what they move."""

from __future__ import annotations

import pytest

from vramcast.gpus import find_gpu
from vramcast.timing.costs import CostModel

BANDWIDTH = 4.8e12  # of an H200


@pytest.fixture(scope="module")
def model() -> CostModel:
    return CostModel.for_gpu(find_gpu("h200"))


def test_a_4_bit_weight_is_unpacked_once(model: CostModel) -> None:
    args = "u8(8388608,1), f32(262144), 64, nf4, [4096, 4096], bfloat16"
    cost = model.cost("bitsandbytes.dequantize_4bit.default", args)
    assert cost.bytes == 8388608 + 4 * 262144 + 2 * 4096**2
    assert cost.bytes / BANDWIDTH < cost.device_seconds < 2.5 * cost.bytes / BANDWIDTH


def test_a_product_with_a_4_bit_weight_is_that_of_the_unpacked_one(model: CostModel) -> None:
    args = "bf16(4,512,4096), u8(8388608,1), [4096, 4096], f32(1024), 64, nf4, None, u8(262144), f32(256), f32()"
    packed = model.cost("bitsandbytes.gemm_4bit.default", args)
    plain = model.cost("aten.mm.default", "bf16(2048,4096), bf16(4096,4096){1,4096}")
    assert packed.flops == plain.flops == 2 * 2048 * 4096**2
    assert plain.device_seconds < packed.device_seconds < 2 * plain.device_seconds
    few = model.cost("bitsandbytes.gemm_4bit.default", args.replace("4,512,4096", "1,1,4096"))
    assert few.device_seconds < 0.5 * packed.device_seconds


@pytest.mark.parametrize(
    "op, args",
    [
        ("library.strange.default", "u8(1441792,1), f32(45056)"),  # shapes that would broadcast to 65 billion elements
        ("library.strange.default", "f32(1000,1), f32(1,1000), f32(3,5)"),
        ("aten.strange.default", "f32(4096,64), f32(77,64)"),  # and such as no broadcast allows
    ],
)
def test_what_nothing_is_known_of_moves_what_it_is_given(model: CostModel, op: str, args: str) -> None:
    cost = model.cost(op, args)
    given = sum(tensor.nbytes for tensor in _tensors(args))
    assert given < cost.bytes <= 2 * given
    assert cost.device_seconds <= 2 * cost.bytes / BANDWIDTH + 2e-6
    assert op in model.unknown_ops


def _tensors(args: str):  # type: ignore[no-untyped-def]
    from vramcast.timing.costs.signature import parse_arguments

    return parse_arguments(args).tensors
