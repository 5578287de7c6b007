"""Arithmetic and bytes of operators, worked out by hand."""

from __future__ import annotations

import pytest

from vramcast.gpus import find_gpu
from vramcast.timing.costs import CostModel, OpCost

H200 = CostModel.for_gpu(find_gpu("h200"))


def cost(op: str, args: str) -> OpCost:
    return H200.cost(op, args)


def test_matrix_products() -> None:
    found = cost("aten.mm.default", "bf16(1024,512), bf16(512,256){1,512}")
    assert found.flops == 2 * 1024 * 512 * 256
    assert found.bytes == 2 * (1024 * 512 + 512 * 256 + 1024 * 256)
    assert cost("aten.addmm.default", "f32(8), f32(16,4), f32(4,8)").flops == 2 * 16 * 4 * 8
    assert cost("aten.bmm.default", "f32(6,16,4), f32(6,4,8)").flops == 6 * 2 * 16 * 4 * 8


def test_convolutions_and_their_gradients() -> None:
    shape = "[2, 2], [1, 1], [1, 1], False, [0, 0], 1"
    forward = cost("aten.convolution.default", f"f32(4,16,32,32), f32(8,16,3,3), None, {shape}")
    one = 2 * 4 * 16 * 16 * 8 * 16 * 9
    assert forward.flops == one
    assert forward.bytes == 4 * (4 * 16 * 32 * 32 + 8 * 16 * 9 + 4 * 8 * 16 * 16)
    both = f"f32(4,8,16,16), f32(4,16,32,32), f32(8,16,3,3), [0], {shape}"
    assert cost("aten.convolution_backward.default", f"{both}, [True, True, False]").flops == 2 * one
    assert cost("aten.convolution_backward.default", f"{both}, [False, True, False]").flops == one
    transposed = cost(
        "aten.convolution.default", "f32(4,16,8,8), f32(16,8,2,2), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1"
    )
    assert transposed.flops == 2 * 4 * 16 * 8 * 8 * 8 * 4
    depthwise = cost(
        "aten.convolution.default", "f32(4,16,8,8), f32(16,1,3,3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 16"
    )
    assert depthwise.flops == 2 * 4 * 16 * 8 * 8 * 9
    assert depthwise.kind.startswith("depthwise")


@pytest.mark.parametrize(
    ("op", "args", "moved"),
    [
        ("aten.add.Tensor", "f32(64,32), f32(64,32)", 3 * 64 * 32 * 4),
        ("aten.add.Tensor", "f32(64,32), f32(32)", (2 * 64 * 32 + 32) * 4),
        ("aten.add_.Tensor", "bf16(64,32), f32(64,32)", 64 * 32 * (2 + 4 + 2)),
        ("aten.gt.Scalar", "f32(64,32), 0", 64 * 32 * 5),
        ("aten._to_copy.default", "f32(64,32), dtype=bfloat16", 64 * 32 * 6),
        ("aten.clone.default", "f32(64,32)", 2 * 64 * 32 * 4),
        ("aten.sum.dim_IntList", "f32(64,32), [0], True", (64 * 32 + 32) * 4),
        ("aten.zeros.default", "[64, 32], dtype=float32, device=cuda:0", 64 * 32 * 4),
        ("aten._foreach_mul_.Scalar", "[f32(64), f32(32)], 0.9", 2 * 96 * 4),
        ("aten._foreach_addcdiv_.ScalarList", "[f32(64)], [f32(64)], [f32(64)], [0.1]", 4 * 64 * 4),
        ("aten.native_layer_norm.default", "bf16(8,16,64), [64], bf16(64), bf16(64), 1e-05", 2 * 8 * 16 * 64 * 2),
    ],
)  # fmt: skip
def test_bytes_moved(op: str, args: str, moved: int) -> None:
    assert cost(op, args).bytes == moved


def test_experts_are_one_product_that_reads_every_expert() -> None:
    found = cost("aten._grouped_mm.default", "bf16(8192,768), bf16(8,768,4096){3145728,1,768}, i32(8)")
    assert found.flops == 2 * 8192 * 768 * 4096
    assert found.bytes == 2 * (8192 * 768 + 8 * 768 * 4096 + 8192 * 4096)


def test_flash_attention_reaches_35_percent_of_an_h100() -> None:
    """arXiv 2407.08608; cuDNN's kernels are written for it, and an A100 has no others."""
    shapes = ", ".join(["bf16(4,32,8192,128)"] * 3)
    args = f"{shapes}, 0, True, False"

    def share(card: str) -> float:
        gpu = find_gpu(card)
        found = CostModel(gpu).cost("aten._scaled_dot_product_flash_attention.default", args)
        return found.flops / found.device_seconds / ((gpu.bf16_tflops or 0) * 1e12)

    assert share("h100") == pytest.approx(0.35, abs=0.01)
    assert share("a100-sxm4-80gb") == pytest.approx(0.5, abs=0.01)


def test_causal_attention_is_half() -> None:
    shapes = "bf16(2,8,512,64), bf16(2,8,512,64), bf16(2,8,512,64), None, True, 0"
    full = cost("aten._scaled_dot_product_cudnn_attention.default", f"{shapes}, False, scale=0.125")
    causal = cost("aten._scaled_dot_product_cudnn_attention.default", f"{shapes}, True, scale=0.125")
    assert full.flops == 4 * 2 * 8 * 512 * 512 * 64
    assert causal.flops == pytest.approx(full.flops / 2, rel=0.01)
    assert causal.device_seconds < full.device_seconds


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("aten.view.default", "f32(4,8), [32]"),
        ("aten.t.default", "f32(4,8)"),
        ("aten.empty.memory_format", "[4, 8], device=cuda:0"),
        ("profiler._record_function_enter_new.default", "Optimizer.step"),
        ("aten._foreach_add_.Tensor", "[cpu:f32(), cpu:f32()], cpu:f32()"),
        ("aten.add.Tensor", "cpu:f32(4), cpu:f32(4)"),
    ],
)
def test_what_the_host_does_costs_the_device_nothing(op: str, args: str) -> None:
    found = cost(op, args)
    assert (found.device_seconds, found.kernels) == (0.0, 0)


def test_unknown_operators_are_named_and_counted() -> None:
    model = CostModel.for_gpu(find_gpu("h200"))
    known = model.cost("aten.mul.Tensor", "f32(1024,1024), f32(1024,1024)")
    for _ in range(3):
        guessed = model.cost("other.frobnicate.default", "f32(1024,1024), f32(1024,1024)")
    assert model.unknown_ops == {"other.frobnicate.default": 3}
    assert guessed.device_seconds == pytest.approx(known.device_seconds, rel=0.3)


def test_tf32_is_a_setting_of_each_library() -> None:
    product = ("aten.mm.default", "f32(4096,4096), f32(4096,4096)")
    assert H200.cost(*product, tf32=True).device_seconds < H200.cost(*product).device_seconds / 2
    shape = "f32(32,256,56,56), f32(256,256,3,3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1"
    allowed = H200.cost("aten.convolution.default", shape).device_seconds
    assert allowed < H200.cost("aten.convolution.default", shape, cudnn_tf32=False).device_seconds / 2


def test_what_limits_an_operator() -> None:
    assert cost("aten.mm.default", "bf16(8192,8192), bf16(8192,8192)").limited_by == "compute"
    assert cost("aten.mul.Tensor", "f32(8192,8192), f32(8192,8192)").limited_by == "memory"
    assert cost("aten.mul.Tensor", "f32(8), f32(8)").limited_by == "launch"


def test_group_convolutions_by_how_they_run() -> None:
    shape = "None, [1, 1], [1, 1], [1, 1], False, [0, 0]"

    def kind(args: str) -> tuple[str, int]:
        found = cost("aten.convolution.default", args)
        return found.kind, found.kernels

    assert kind(f"bf16(8,512,14,14), bf16(512,16,3,3), {shape}, 32")[0] == "grouped-fwd"
    looped, kernels = kind(f"bf16(8,512,14,14), bf16(1024,32,5,5), {shape}, 16")
    assert looped == "looped-fwd" and kernels > 16
    assert kind(f"bf16(8,240,14,14), bf16(240,120,3,3), {shape}, 2")[0] == "widened-nchw"
    last = "f16(8,336,48,48){774144,1,16128,336}, f16(336,168,3,3){1512,1,504,168}"
    assert kind(f"{last}, {shape}, 2")[0] == "widened"


def test_recurrent_networks_by_steps() -> None:
    def call(width: int, backward: bool) -> tuple[str, str]:
        weights = f"[f16({4 * width},{width}), f16({4 * width},{width}), f16({4 * width}), f16({4 * width})]"
        state, out = f"f16(1,6,{width})", f"f16(50,6,{width})"
        more = f", {out}, {out}, None, None" if backward else ""
        args = (
            f"f16(50,6,{width}), {weights}, 4, f16(9), {state}, {state}{more}, 2, {width}, 0, 1, False, 0, True, False"
        )
        return f"aten._cudnn_rnn{'_backward' if backward else ''}.default", args

    for backward in (False, True):
        assert 1.5 * 50 < cost(*call(512, backward)).kernels < 3.5 * 50
        assert cost(*call(64, backward)).kernels < 20


@pytest.mark.parametrize(
    "mode, hidden, forward, backward",
    [
        # Launches recorded on an H200: 60 steps of two layers, batch 32, FP32 (backward without the sums of gradients).
        (2, 128, 7, 22), (2, 160, 7, 270), (2, 256, 251, 390), (3, 160, 8, 270), (3, 256, 250, 270), (3, 512, 250, 415),
        (1, 256, 6, 22), (1, 512, 380, 270),
    ],
)  # fmt: skip
def test_recurrent_networks_launch_what_was_recorded(mode: int, hidden: int, forward: int, backward: int) -> None:
    gates = {1: 1, 2: 4, 3: 3}[mode] * hidden
    weights = ", ".join([f"f32({gates},{hidden})", f"f32({gates},{hidden})", f"f32({gates})", f"f32({gates})"] * 2)
    state, x = f"f32(2,32,{hidden})", f"f32(32,60,{hidden})"
    begin, rest = f"{x}, [{weights}], 4, f32(9), {state}, {state}", f"{mode}, {hidden}, 0, 2, True, 0, True, False, []"
    found = cost("aten._cudnn_rnn.default", f"{begin}, {rest}, None").kernels
    found_backward = cost("aten._cudnn_rnn_backward.default", f"{begin}, {x}, {x}, None, None, {rest}, None").kernels
    assert forward * 0.6 < found < forward * 1.4
    assert backward * 0.6 < found_backward < backward * 1.4


def test_packed_and_bfloat16_networks_have_no_kernel_that_keeps_its_weights() -> None:
    weights = ", ".join(["{0}(256,64)", "{0}(256,64)", "{0}(256)", "{0}(256)"])
    text = (
        "{0}({1}), ["
        + weights
        + "], 4, {0}(9), {0}(1,8,64), {0}(1,8,64), 2, 64, 0, 1, False, 0, True, False, {2}, None"
    )
    plain, packed, half = (
        cost("aten._cudnn_rnn.default", text.format(*how)).kernels
        for how in (("f32", "50,8,64", "[]"), ("f32", "400,64", str([8] * 50)), ("bf16", "50,8,64", "[]"))
    )
    assert plain < 10 and packed > 90 and half > 90


def test_flat_weights_of_recurrent_networks_count_like_others() -> None:
    """Autocast hands them over as columns."""
    rest = "4, f16(9), f16(1,6,512), f16(1,6,512), 2, 512, 0, 1, False, 0, True, False"
    shaped = f"f16(50,6,512), [f16(2048,512), f16(2048,512), f16(2048), f16(2048)], {rest}"
    flat = f"f16(50,6,512), [f16(1048576,1), f16(1048576,1), f16(2048,1), f16(2048,1)], {rest}"
    one, other = (cost("aten._cudnn_rnn.default", args) for args in (shaped, flat))
    assert (one.kind, one.flops) == (other.kind, other.flops)


def test_kernels_that_go_through_their_work_one_by_one() -> None:
    def seconds(op: str, args: str) -> float:
        return cost(op, args).device_seconds

    shrunk = [f"f32(8,21,512,512), [512, 512], [8, 21, {side}, {side}], False" for side in (256, 32)]
    assert seconds("aten.upsample_bilinear2d_backward.default", shrunk[1]) > 3 * seconds(
        "aten.upsample_bilinear2d_backward.default", shrunk[0]
    )
    nms = [seconds("torchvision.nms.default", f"f32({count},4), f32({count}), 0.7") for count in (2000, 8000)]
    assert nms[1] > 4 * nms[0]
    scans = [seconds("aten.cumsum.default", f"f32(2048,64), {dim}") for dim in (0, 1)]
    assert scans[0] > 5 * scans[1]
    assert seconds("aten.cummax.default", "f32(4096,4096), 1") > 1.5 * seconds(
        "aten.cumsum.default", "f32(4096,4096), 1"
    )
    losses = [f"f32({rows},16), i64({rows}), None, 1, -100" for rows in (1000, 500000)]
    assert seconds("aten.nll_loss_forward.default", losses[1]) > 30 * seconds(
        "aten.nll_loss_forward.default", losses[0]
    )


def test_a_mask_picks_at_most_what_it_covers() -> None:
    found = cost("aten.index.Tensor", "f32(130,3234), [b8(130,3234)]")
    assert found.device_seconds < 1e-4
    assert found.kernels > 1


def test_more_kernels_are_launched_than_a_rule_counts() -> None:
    """Products are cleared for and split: on average more than one kernel each."""
    assert 1.0 < cost("aten.mm.default", "bf16(4096,1024), bf16(1024,1024)").launches < 2.0
    assert cost("aten.mul.Tensor", "f32(64,64), f32(64,64)").launches == pytest.approx(1.0, abs=0.05)
    assert cost("aten.mm.default", "f32(32,65536){1,32}, f32(65536,32)").launches > 1.5
    assert cost("aten.im2col.default", "f32(64,48,28,28), [3, 3], [1, 1], [1, 1], [1, 1]").launches > 50
    put = [
        cost("aten.index_put_.default", f"f32(104), [b8(104)], {value}").launches for value in ("f32(9)", "cpu:f32()")
    ]
    assert put[0] > put[1] + 3
    loss = cost("aten.binary_cross_entropy_with_logits.default", "f32(512), f32(512)")
    assert loss.launches == pytest.approx(6.0, abs=0.6)


def test_a_convolution_without_a_workspace_turns_nothing() -> None:
    call = "aten.convolution.default", "f32(32,10,1020), f32(10,10,8), f32(10), [1], [7], [1], False, [0], 1"
    turned, lying = (H200.cost(*call, turned=(value,)).launches for value in (True, False))
    assert turned > 4 and lying < 3
    assert cost("aten.view.default", "f32(8,8), [64]").launches == 0
