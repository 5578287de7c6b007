"""The front door: how a virtual GPU is made, entered and left, and that it leaves nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import vramcast
from vramcast.base.units import GIB, MIB
from vramcast.errors import CannotPredict, UsageError
from vramcast.gpus import find_gpu


def train(steps: int = 3, width: int = 256) -> torch.nn.Module:
    model = torch.nn.Linear(width, width).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(32, width, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_the_names_in_the_readme() -> None:
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        assert isinstance(gpu, vramcast.VirtualGpu)
        train()
        inside = gpu.prediction()
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    after = gpu.prediction()
    assert (inside.peak_allocated_bytes, inside.peak_reserved_bytes) == peaks
    assert (after.peak_allocated_bytes, after.peak_reserved_bytes) == peaks
    assert after.device_bytes == after.peak_reserved_bytes + after.context_bytes
    assert after.context_bytes > find_gpu("rtx-4090").context_bytes, "kernels were loaded too"
    assert after.fits and after.steps == 3
    assert sum(part.size_bytes for part in after.account.parts) == after.device_bytes


@pytest.mark.parametrize(
    "uses",
    [
        "vramcast.virtual_gpu('t4'); from vramcast.card.device.context import virtual_gpu; virtual_gpu('t4')",
        "import vramcast.card.device.context; vramcast.virtual_gpu('t4'); from vramcast import virtual_gpu as v; "
        "v('t4')",
    ],
)
def test_the_package_and_the_function_share_a_name(uses: str) -> None:
    code = f"import vramcast, sys; assert 'torch' not in sys.modules; {uses}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_entering_again_and_again_does_not_grow_what_dynamo_looks_through() -> None:
    from torch._dynamo import trace_rules

    with vramcast.virtual_gpu("t4"):
        before = len(trace_rules.SKIP_DIRS)
    with vramcast.virtual_gpu("t4"):
        assert len(trace_rules.SKIP_DIRS) == before


def test_public_names_are_listed_and_others_are_not() -> None:
    assert {"virtual_gpu", "VirtualGpu", "GpuSpec", "rule"} <= set(dir(vramcast))
    with pytest.raises(AttributeError, match="no_such_name"):
        vramcast.no_such_name  # noqa: B018


def test_a_specification_instead_of_a_name() -> None:
    spec = vramcast.GpuSpec.from_memory("2GiB")
    with vramcast.virtual_gpu(spec) as gpu:
        assert torch.cuda.get_device_properties(0).total_memory == spec.total_memory_bytes
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    assert gpu.gpu is spec


@pytest.mark.parametrize("name", ["rtx-4909", ""])
def test_an_unknown_card(name: str) -> None:
    with pytest.raises(UsageError, match="vramcast gpus"):
        vramcast.virtual_gpu(name)


@pytest.mark.parametrize(
    ("name", "capability", "bf16"), [("rtx-4090", (8, 9), True), ("t4", (7, 5), False), ("h200", (9, 0), True)]
)
def test_the_card_is_the_target(name: str, capability: tuple[int, int], bf16: bool) -> None:
    with vramcast.virtual_gpu(name):
        spec = find_gpu(name)
        assert torch.cuda.is_available() and not torch.cuda.is_initialized()
        assert torch.cuda.get_device_name() == spec.name and torch.cuda.is_initialized()
        assert torch.cuda.get_device_capability() == capability
        assert torch.cuda.is_bf16_supported(including_emulation=False) is bf16
        properties = torch.cuda.get_device_properties("cuda")
        assert properties.total_memory == spec.total_memory_bytes
        assert (properties.major, properties.minor) == capability
        assert properties.multi_processor_count == spec.sm_count


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(UsageError, match="limit_bytes"):
        vramcast.virtual_gpu("t4", limit_bytes=0)


def test_nothing_on_the_card_is_no_prediction() -> None:
    with vramcast.virtual_gpu("t4") as gpu:
        torch.ones(3)
    with pytest.raises(CannotPredict, match="nothing"):
        gpu.prediction()


def test_one_card_at_a_time() -> None:
    with vramcast.virtual_gpu("t4"):
        with pytest.raises(UsageError, match="active already"), vramcast.virtual_gpu("t4"):
            pass
        assert torch.cuda.is_available(), "the first one is still there"


def test_a_card_is_used_once() -> None:
    card = vramcast.virtual_gpu("t4")
    with card:
        pass
    with pytest.raises(UsageError, match="used already"), card:
        pass


def test_two_cards_one_after_the_other_give_the_same() -> None:
    predictions = []
    for _ in range(2):
        with vramcast.virtual_gpu("rtx-4090") as gpu:
            train()
        predictions.append(gpu.prediction())
    assert predictions[0].peak_allocated_bytes == predictions[1].peak_allocated_bytes
    assert predictions[0].account.parts == predictions[1].account.parts


# -- what is put back -------------------------------------------------------------------------------------------


def _watched() -> dict[str, Any]:
    """Names that the virtual GPU replaces."""
    owners: list[tuple[Any, str]] = [
        (torch, "save"),
        (torch, "load"),
        (torch, "compile"),
        (torch, "Generator"),
        (torch.nn.Parameter, "__new__"),
        (torch.nn.Module, "register_buffer"),
        (torch.Tensor, "_reduce_ex_internal"),
        (torch.Tensor, "__new__"),
        (torch.UntypedStorage, "__new__"),
        (torch.UntypedStorage, "device"),
        (torch.export, "export"),
        (torch.autograd.Variable, "_execution_engine"),
        (torch.serialization, "_package_registry"),
        (torch.utils._device.DeviceContext, "__torch_function__"),
        (threading.Thread, "_bootstrap_inner"),
    ]
    owners += [(torch.cuda, name) for name in dir(torch.cuda) if not name.startswith("__")]
    owners += [(torch.accelerator, name) for name in dir(torch.accelerator) if not name.startswith("__")]
    found = {}
    for owner, name in owners:
        found[f"{getattr(owner, '__name__', owner)}.{name}"] = vars(owner).get(name)
    return found


def _our_kernels() -> list[str]:
    """Ops for which a kernel of ours is in the dispatcher: up to torch 2.10 it does not say where one comes from."""
    names = ("aten::mm", "aten::layer_norm", "aten::dropout", "aten::scaled_dot_product_attention", "aten::lstm.input")
    ours = re.compile(r"^(AutocastCUDA|AutogradMeta): registered at (vramcast/|/dev/null)", re.MULTILINE)
    return [name for name in names if ours.search(torch._C._dispatch_dump(name))]


def _fails() -> None:
    train(1)
    raise KeyError("the program's own")


def _runs_out_of_memory() -> None:
    torch.empty(1 << 40, device="cuda")


@pytest.mark.parametrize(
    ("program", "error"), [(train, None), (_fails, KeyError), (_runs_out_of_memory, torch.OutOfMemoryError)]
)
def test_everything_is_put_back(program: Callable[[], object], error: type[BaseException] | None) -> None:
    if torch.cuda.is_available():
        pytest.skip("a real GPU would answer")
    before = _watched()
    hooks = len(torch.nn.modules.module._global_forward_hooks)
    if error is None:
        with vramcast.virtual_gpu("t4"):
            assert len(_our_kernels()) == 5
            program()
    else:
        with pytest.raises(error), vramcast.virtual_gpu("t4"):
            program()
    after = _watched()
    assert [name for name in before if before[name] is not after[name]] == []
    assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
    assert len(torch.nn.modules.module._global_forward_hooks) == hooks
    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == 0
    assert _our_kernels() == []
    assert not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.AutocastCUDA)
    assert torch.nn.Linear(3, 3).weight.untyped_storage().data_ptr() != 0, "parameters hold data again"
    assert torch.UntypedStorage(12).nbytes() == 12 and torch.Tensor([1, 2]).tolist() == [1, 2]
    x = torch.empty(8, 8, device="meta", requires_grad=True)
    assert torch.nn.functional.dropout(x, 0.5).grad_fn.name() != "NativeDropoutBackward0"


def test_what_outlives_the_card_is_left_alone() -> None:
    with vramcast.virtual_gpu("t4") as gpu:
        model = train()
        peak = torch.cuda.max_memory_allocated()
    assert model.weight.is_meta
    del model
    assert gpu.prediction().peak_allocated_bytes == peak


def test_a_stand_in_kept_by_an_imported_module_gives_way() -> None:
    with vramcast.virtual_gpu("t4"):
        kept_generator, kept_save = torch.Generator, torch.save
        assert kept_generator("cuda").device.type == "cuda"
        assert isinstance(kept_generator("cpu"), torch.Generator)
    assert isinstance(kept_generator(), torch.Generator)
    assert kept_generator().device.type == "cpu"
    import io

    buffer = io.BytesIO()
    kept_save({"a": torch.ones(2)}, buffer)
    assert torch.load(io.BytesIO(buffer.getvalue()))["a"].tolist() == [1, 1]


# -- limits and settings ----------------------------------------------------------------------------------------


def test_limit_bytes_is_what_pytorch_may_reserve() -> None:
    with vramcast.virtual_gpu("rtx-4090", limit_bytes=GIB) as gpu:
        torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
        held = torch.empty(GIB, dtype=torch.uint8, device="cuda")  # the freed half is given back to make room
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1, device="cuda")
        del held
    assert gpu.prediction().limit_bytes == GIB + gpu.prediction().context_bytes


def test_loaded_libraries_leave_less_room() -> None:
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        before = gpu.capacity_bytes
        free_before = torch.cuda.mem_get_info()[0]
        x = torch.empty(64, 64, device="cuda")
        reserved = torch.cuda.memory_reserved()
        assert torch.cuda.mem_get_info()[0] == free_before - reserved
        x @ x
        assert gpu.capacity_bytes < before
        kernels = before - gpu.capacity_bytes
        assert torch.cuda.mem_get_info()[0] == free_before - torch.cuda.memory_reserved() - kernels


def test_a_memory_fraction() -> None:
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(0.1)
        assert gpu.capacity_bytes == int(total * 0.1)
        torch.empty(total // 20, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(total // 8, dtype=torch.uint8, device="cuda")
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.empty(total // 8, dtype=torch.uint8, device="cuda")
        with pytest.raises(ValueError, match="fraction"):
            torch.cuda.set_per_process_memory_fraction(1.5)


def test_allocator_settings_change_what_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    def reserved(conf: str | None) -> int:
        with vramcast.virtual_gpu("rtx-4090", allocator_conf=conf) as gpu:
            torch.empty(11 * MIB, dtype=torch.uint8, device="cuda")
            torch.empty(13 * MIB, dtype=torch.uint8, device="cuda")
        return gpu.prediction().peak_reserved_bytes

    # Plain: a segment for each, in whole 2 MiB. Expandable: one page of 20 MiB serves both in turn.
    assert reserved("") == 26 * MIB
    assert reserved("expandable_segments:True") == 20 * MIB
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert reserved(None) == 20 * MIB


def test_a_bad_allocator_setting_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="unknown key"):
        vramcast.virtual_gpu("t4", allocator_conf="no_such_key:1")
