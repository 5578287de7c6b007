"""flash-attn where it is not installed: memory as its source allocates it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import vramcast
from vramcast.base.errors import UsageError
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.dispatch.failures import ScriptFailed
from vramcast.card.ops.attention import key_splits
from vramcast.card.stand_ins.kernels.flash_attention import padded_width
from vramcast.scripts.runner import run_script

pytestmark = pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="the real one is installed")

BATCH, LENGTH, HEADS, WIDTH = 2, 1024, 8, 64
HALF = torch.bfloat16
BF16 = 2
TENSOR = BATCH * LENGTH * HEADS * WIDTH * BF16
SUMS = BATCH * HEADS * LENGTH * 4
SEED = 512  # two numbers, in a block of the allocator


def _grown(before: int) -> int:
    return torch.cuda.memory_allocated() - before


def test_forward_keeps_output_sums_and_seed() -> None:
    with vramcast.virtual_gpu("h200", packages=["flash-attn"]):
        from flash_attn import flash_attn_func

        q, k, v = (torch.randn(BATCH, LENGTH, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        q.requires_grad_()
        before = torch.cuda.memory_allocated()
        out = flash_attn_func(q, k, v, causal=True)
        assert out.shape == q.shape
        assert _grown(before) == TENSOR + SUMS + SEED


def test_backward_of_packed_tensors_takes_one_gradient_and_fp32_sums() -> None:
    with vramcast.virtual_gpu("h200", packages=["flash-attn"]):
        from flash_attn import flash_attn_qkvpacked_func

        qkv = torch.randn(BATCH, LENGTH, 3, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        out = flash_attn_qkvpacked_func(qkv, causal=True)
        grad = torch.ones_like(out)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out.backward(grad)
        assert _grown(before) == 3 * TENSOR - SUMS - SEED  # the output is still there, what was saved is not
        assert torch.cuda.max_memory_allocated() - before == 3 * TENSOR + SUMS + 2 * TENSOR


def test_shared_keys_and_odd_widths_are_padded_and_expanded() -> None:
    """Width 60 becomes 64; two heads of keys get their gradients for each of the eight heads."""
    with vramcast.virtual_gpu("h200", packages=["flash-attn"]):
        from flash_attn import flash_attn_func

        q = torch.randn(BATCH, LENGTH, HEADS, 60, device="cuda", dtype=torch.float16, requires_grad=True)
        k, v = (torch.randn(BATCH, LENGTH, 2, 60, device="cuda", dtype=torch.float16) for _ in range(2))
        before = torch.cuda.memory_allocated()
        out = flash_attn_func(q, k, v)
        assert out.shape == q.shape and out.stride(-2) == 64
        shared = TENSOR // 4
        assert _grown(before) == 2 * TENSOR + 2 * shared + SUMS + SEED


def test_sequences_of_varied_length() -> None:
    with vramcast.virtual_gpu("h200", packages=["flash-attn"]):
        from flash_attn import flash_attn_varlen_func

        total = BATCH * LENGTH
        q, k, v = (torch.randn(total, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        q.requires_grad_()
        offsets = torch.tensor([0, 300, total], dtype=torch.int32, device="cuda")
        out = flash_attn_varlen_func(q, k, v, offsets, offsets, total - 300, total - 300, causal=True)
        grad = torch.ones_like(out)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out.backward(grad)
        rows = total + 128 * 2
        scratch = rows * HEADS * 4 + rows * HEADS * WIDTH * 4
        assert torch.cuda.max_memory_allocated() - before == 3 * TENSOR + scratch


def test_float32_is_refused_as_by_the_real_one() -> None:
    with vramcast.virtual_gpu("h200", packages=["flash-attn"]):
        from flash_attn import flash_attn_func

        x = torch.randn(1, 16, 1, 64, device="cuda")
        with pytest.raises(RuntimeError, match="only support fp16 and bf16"):
            flash_attn_func(x, x, x)


def test_widths_and_splits_as_in_the_source() -> None:
    assert [padded_width(width) for width in (32, 40, 96, 128, 136, 160, 192, 256)] == [
        32, 64, 96, 128, 192, 192, 192, 256,
    ]  # fmt: skip
    assert key_splits(64, 1024, 1024, 64, 132) == 1
    assert key_splits(8, 128, 4096, 64, 132) == 16


SCRIPT = """
import torch
{imports}
layer = torch.nn.Linear(64, 64).cuda().bfloat16()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    x = layer(torch.randn(2, 128, 4, 64, device="cuda", dtype=torch.bfloat16))
    x = flash_attn_func(x, x, x) if flash_attn_func is not None else x
    x.sum().backward()
    optimizer.step()
"""


def _ran(folder: Path, imports: str, packages: list[str]) -> list[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT.format(imports=imports))
    prediction = run_script(str(script), gpu="h200", packages=packages)
    return [note.text for note in prediction.notes if note.topic == "packages"]


GUARDED = "try:\n    from flash_attn import flash_attn_func\nexcept ImportError:\n    flash_attn_func = None\n"


def test_a_script_that_cannot_do_without_gets_it(tmp_path: Path) -> None:
    (note,) = _ran(tmp_path, "from flash_attn import flash_attn_func", [])
    assert note.startswith("flash-attn is not installed here: a stand-in takes the memory")
    assert "flash_attn" not in sys.modules


def test_a_script_that_can_do_without_is_told_so(tmp_path: Path) -> None:
    (note,) = _ran(tmp_path, GUARDED, [])
    assert "the program goes on without it; --with flash-attn predicts the run with it" in note


def test_a_package_that_will_be_there(tmp_path: Path) -> None:
    (note,) = _ran(tmp_path, GUARDED, ["flash-attn"])
    assert "a stand-in takes the memory" in note


def test_unknown_packages_are_named() -> None:
    with pytest.raises(UsageError, match="no stand-in for flesh-attn; there are:"):
        vramcast.virtual_gpu("h200", packages=["flesh-attn"])


def test_transformers_with_flash_attention_2() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=1, num_attention_heads=4, vocab_size=512
    )
    with vramcast.virtual_gpu("h200") as card:
        model = transformers.LlamaForCausalLM._from_config(
            config, attn_implementation="flash_attention_2", dtype=torch.bfloat16
        ).cuda()
        ids = torch.randint(0, 512, (2, 128), device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
    ops = set(card.trace().ops)
    assert "flash_attn._flash_attn_forward" in ops and "flash_attn._flash_attn_backward" in ops
    assert not transformers.utils.is_flash_attn_2_available()


def test_transformers_finds_a_stand_in_that_the_program_imported_before() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1, vocab_size=64
    )
    with vramcast.virtual_gpu("h200") as card:
        assert not transformers.utils.is_flash_attn_2_available()
        importlib.import_module("flash_attn")
        model = transformers.LlamaForCausalLM._from_config(
            config, attn_implementation="flash_attention_2", dtype=torch.bfloat16
        ).cuda()
        model(input_ids=torch.zeros(1, 16, device="cuda", dtype=torch.long))
    assert "flash_attn._flash_attn_forward" in set(card.trace().ops)


def test_flash_attn_3_sums_gradients_of_shared_keys_in_fp32() -> None:
    with vramcast.virtual_gpu("h200", packages=["flash-attn-3"]):
        from flash_attn_interface import flash_attn_func

        q = torch.randn(BATCH, LENGTH, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        k, v = (torch.randn(BATCH, LENGTH, 2, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        before = torch.cuda.memory_allocated()
        out = flash_attn_func(q, k, v, causal=True)
        assert _grown(before) == TENSOR + SUMS
        grad = torch.ones_like(out)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out.backward(grad)
        shared = TENSOR // 4
        scratch = 2 * SUMS + 2 * TENSOR + 2 * (2 * shared) + 512
        assert torch.cuda.max_memory_allocated() - before == TENSOR + 2 * shared + scratch


@pytest.mark.skipif(INSTALLED < (2, 11), reason="measured with torch 2.11")
def test_pytorchs_own_copy_splits_keys_too() -> None:
    """Measured on an H200 with 128 queries and 4,096 keys: 4,396,032 bytes at most, of which 136,192 are kept."""
    with vramcast.virtual_gpu("h200"):
        q = torch.randn(1, 128, 8, 64, device="cuda", dtype=torch.bfloat16)
        k = torch.randn(1, 4096, 8, 64, device="cuda", dtype=torch.bfloat16)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        kept = torch.ops.aten._flash_attention_forward(q, k, k, None, None, 128, 4096, 0.0, False, False, scale=0.125)
        assert _grown(before) == 136_192
        assert torch.cuda.max_memory_allocated() - before == 4_396_032
        del kept


def test_extensions_of_its_source_folder() -> None:
    """As older programs call them: a norm that keeps two numbers a row, a rotation and a loss in place."""
    with vramcast.virtual_gpu("h200", packages=["dropout-layer-norm", "rotary-emb", "xentropy-cuda-lib"]):
        import dropout_layer_norm
        import rotary_emb
        import xentropy_cuda_lib

        x, gamma = torch.randn(4096, 1024, device="cuda", dtype=HALF), torch.ones(1024, device="cuda", dtype=HALF)
        before = torch.cuda.memory_allocated()
        norm = dropout_layer_norm.dropout_add_ln_fwd(
            x, None, gamma, None, None, None, None, None, 0.0, 1e-5, 1.0, 0, None, False, True
        )
        assert _grown(before) == 4096 * 1024 * 2 + 2 * 4096 * 4
        assert norm[1] is None and norm[2] is None  # x is x0, and nothing was dropped
        before = torch.cuda.memory_allocated()
        first, second = x.chunk(2, dim=-1)
        rotary_emb.apply_rotary(first, second, gamma, gamma, first, second, False)
        assert _grown(before) == 0
        losses, sums = xentropy_cuda_lib.forward(x, torch.zeros(4096, device="cuda", dtype=torch.int64), 0.0)
        assert xentropy_cuda_lib.backward(losses, x, sums, sums, 0.0, True) is x
        assert _grown(before) == 2 * 4096 * 4


def test_an_error_that_names_a_package_says_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text('raise ValueError("xformers is not available. Make sure it is installed correctly")\n')
    with pytest.raises(ScriptFailed, match="--with xformers predicts the run as if xformers were installed here"):
        run_script(str(script), gpu="h200")


def test_names_that_others_take_from_flash_attn() -> None:
    with vramcast.virtual_gpu("h200"):
        torch.distributed.init_process_group("nccl", rank=0, world_size=1, store=torch.distributed.HashStore())
        from flash_attn.bert_padding import pad_input
        from flash_attn.utils.distributed import all_gather

        rows = torch.randn(8, 4, device="cuda", requires_grad=True)
        all_gather(rows, torch.distributed.group.WORLD).sum().backward()
        assert rows.grad is not None and rows.grad.shape == rows.shape
        assert callable(pad_input)
        torch.distributed.destroy_process_group()
