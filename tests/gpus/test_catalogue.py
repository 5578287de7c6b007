"""The catalogue of cards: names, data, and the rules for what is not published."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from vramcast.base.units import MIB
from vramcast.errors import UsageError
from vramcast.gpus import GpuSpec, all_gpus, find_gpu
from vramcast.gpus.spec import model_context_bytes, model_total_memory_bytes


@pytest.mark.parametrize(
    ("name", "gpu_id"),
    [
        ("rtx-4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("RTX4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("geforce rtx 4090", "rtx-4090"),
        ("RTX 4090 D", "rtx-4090-d"),
        ("A100-SXM4-80GB", "a100-80gb"),
        ("a100 40gb", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("A100 80GB", "a100-80gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("h200", "h200"),
        ("A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("4060 ti 16gb", "rtx-4060-ti-16gb"),
    ],
)
def test_any_spelling_finds_the_card(name: str, gpu_id: str) -> None:
    assert find_gpu(name).id == gpu_id


def test_every_name_and_alias_finds_its_own_card() -> None:
    for spec in all_gpus():
        for name in (spec.id, spec.name, *spec.aliases):
            assert find_gpu(name) is spec, name


def test_an_unknown_name_suggests_near_ones() -> None:
    with pytest.raises(UsageError, match="rtx-4090"):
        find_gpu("rtx-4099")
    with pytest.raises(UsageError, match="vramcast gpus"):
        find_gpu("zzz")


@pytest.mark.parametrize("wish", ["24GiB", "24GB", "24 gib", "24G", "24576MiB"])
def test_a_size_is_a_card(wish: str) -> None:
    spec = find_gpu(wish)
    assert spec.memory_mib == 24576
    assert 23.0 < spec.pytorch_bytes / 2**30 < spec.usable_bytes / 2**30 < 23.7
    assert spec.total_memory_modelled


def test_a_size_too_small_for_a_context_is_refused() -> None:
    with pytest.raises(UsageError):
        find_gpu("100MiB")


def test_specs_are_plausible_and_sourced() -> None:
    specs = all_gpus()
    assert len(specs) >= 45
    assert len({spec.id for spec in specs}) == len(specs)
    for spec in specs:
        assert 0.94 < spec.total_memory_bytes / (spec.memory_mib * MIB) < 1, spec.id
        assert 50 * MIB < spec.context_bytes < 800 * MIB, spec.id
        for field in ("memory_mib", "total_memory_bytes", "context_bytes"):
            assert spec.sources.get(field), (spec.id, field)
        for name in ("fp32", "tf32", "fp16", "bf16", "fp8"):
            if getattr(spec, f"{name}_tflops") is not None:
                assert spec.sources[f"{name}_tflops"], (spec.id, name)
        # Dense rates double with each halving of the width; a sparse figure taken for a dense one would show.
        if spec.fp16_tflops and spec.fp8_tflops:
            assert spec.fp8_tflops == pytest.approx(2 * spec.fp16_tflops, rel=0.02), spec.id
        if spec.fp16_tflops and spec.tf32_tflops:
            assert spec.tf32_tflops == pytest.approx(spec.fp16_tflops / 2, rel=0.03), spec.id
        if spec.compute_capability < (8, 0):
            assert spec.bf16_tflops is None and spec.tf32_tflops is None, spec.id


def test_figures_that_were_measured_here() -> None:
    h200 = find_gpu("h200")
    assert h200.memory_mib == 143771
    assert h200.total_memory_bytes == 143156 * MIB
    assert h200.context_bytes == 518 * MIB
    assert not h200.total_memory_modelled and not h200.context_modelled


def test_the_rules_agree_with_the_published_figures() -> None:
    for spec in all_gpus():
        if not spec.total_memory_modelled and spec.compute_capability >= (8, 0):
            off_mib = (model_total_memory_bytes(spec.memory_mib) - spec.total_memory_bytes) / MIB
            assert abs(off_mib) < 175, (spec.id, off_mib)
        if not spec.context_modelled:
            modelled = model_context_bytes(spec.sm_count, spec.compute_capability)
            assert modelled == pytest.approx(spec.context_bytes, rel=0.02), spec.id


def test_a_spec_survives_json() -> None:
    for spec in (find_gpu("rtx-4090"), GpuSpec.from_memory("12GiB")):
        assert GpuSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_from_dict_names_what_is_wrong() -> None:
    with pytest.raises(UsageError, match="not a GPU specification"):
        GpuSpec.from_dict({"id": "x"})
    with pytest.raises(UsageError, match="not a GPU specification"):
        GpuSpec.from_dict({**find_gpu("t4").to_dict(), "wheels": 4})


def test_loading_needs_no_torch() -> None:
    code = "import sys; from vramcast.gpus import find_gpu; find_gpu('4090'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["a100", "A100-PCIe", "NVIDIA A100 SXM"])
def test_a_card_that_comes_in_two_sizes_is_asked_for(name: str) -> None:
    with pytest.raises(UsageError, match=r"which one. It comes with 40 and 80 GB: a100-40gb, a100-80gb"):
        find_gpu(name)
