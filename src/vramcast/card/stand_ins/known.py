"""Which packages have stand-ins."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from vramcast.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class Package:
    """`name` is what is imported, `distribution` what is installed."""

    name: str
    distribution: str
    version: str
    part_of: tuple[str, ...] = ()
    """Packages that look for it as for a part of their own."""


_ALL = (
    Package("flash_attn", "flash-attn", "2.8.4"),
    Package("flash_attn_interface", "flash-attn-3", "3.0.0"),
    Package("xformers", "xformers", "0.0.34"),
    Package("mamba_ssm", "mamba-ssm", "2.3.2"),
    Package("selective_scan_cuda", "mamba-ssm with its compiled part", "2.3.2", ("mamba_ssm",)),
    Package("causal_conv1d", "causal-conv1d", "1.6.1", ("mamba_ssm",)),
    Package("apex", "apex", "0.1"),
    Package("dropout_layer_norm", "dropout-layer-norm", "2.8.4"),
    Package("rotary_emb", "rotary-emb", "2.5"),
    Package("transformer_engine_torch", "transformer_engine_torch", "2.20", ("transformer_engine",)),
    Package("xentropy_cuda_lib", "xentropy-cuda-lib", "2.5"),
)  # fmt: skip
KNOWN = {package.name: package for package in _ALL}


def names_of(packages: Iterable[str]) -> set[str]:
    """What is imported of packages, which are called as they are installed or as they are imported."""
    names = set()
    for text in packages:
        found = next((name for name, known in KNOWN.items() if text in (name, known.distribution)), None)
        if found is None:
            known = ", ".join(sorted(package.distribution for package in _ALL))
            raise UsageError(f"there is no stand-in for {text}; there are: {known}")
        names.add(found)
    return names


_WITHOUT_GPU = {
    "transformer_engine": ("transformer_engine", "einops", "onnxscript"),
    "unsloth": ("unsloth",),
    "liger_kernel": ("liger-kernel",),
    "fla": ("flash-linear-attention",),
    "torchao": ("torchao",),
    "bitsandbytes": ("bitsandbytes",),
    "deepspeed": ("deepspeed",),
    "cut_cross_entropy": ("cut-cross-entropy",),
}
"""Packages of kernels that install without a GPU, and run on the virtual card as they are or with stand-ins for their
compiled parts: what to install."""

_COMPILED = frozenset({
    "MinkowskiEngine", "MultiScaleDeformableAttention", "curope", "dcn_v2", "deep_ep", "deep_gemm", "detectron2",
    "diff_gaussian_rasterization", "flashinfer", "fused_dense_lib", "grouped_gemm", "gsplat", "k2", "kaolin", "mmcv",
    "natten", "nvdiffrast", "pyg_lib", "pytorch3d", "sageattention", "simple_knn", "spconv", "tinycudann",
    "torch_cluster", "torch_scatter", "torch_sparse", "torchsparse", "warprnnt_pytorch",
})  # fmt: skip
"""Packages whose compiled CUDA code has no stand-in."""

_NO_ATTRIBUTE = re.compile(r"module '([\w.]+)' has no attribute '(\w+)'")


def absent(error: BaseException, python: str) -> str:
    """What to do where a module, or a name in one, is not there; nothing for other errors."""
    name = (error.name or "") if isinstance(error, ImportError) else ""
    if isinstance(error, AttributeError) and (found := _NO_ATTRIBUTE.match(str(error))):
        name = found[1]
    package, is_top = name.partition(".")[0], "." not in name and isinstance(error, ModuleNotFoundError)
    if package in KNOWN and not is_top:
        return (
            f"\nThe stand-in that vramcast has for {KNOWN[package].distribution} has no more than what is named in its "
            "docs (compile.md). Leave this out for the prediction, or teach its kernels with vramcast.rule."
        )
    if not isinstance(error, ModuleNotFoundError):
        return ""
    if package in KNOWN:
        return hint(name)
    if package in _COMPILED:
        return (
            f"\n{package} is compiled CUDA code, which a virtual card cannot run, and vramcast has no stand-in for it: "
            "leave it out for the prediction, or give a module of that name whose functions are operators taught with "
            '@vramcast.rule("namespace::op").'
        )
    if not is_top and package in sys.modules:
        return ""  # it is installed, in a version without that module
    text = f"\nvramcast runs the script with {python}: what the script imports must be installed there."
    if needed := _WITHOUT_GPU.get(package):
        text += f"\n`pip install {' '.join(needed)}` does not need a GPU."
    return text


def hint(text: str) -> str:
    """What to do where an error names a package that has a stand-in and is not here; nothing where it does not."""
    for package in _ALL:
        if re.search(rf"\b({package.name}|{re.escape(package.distribution)})\b", text, re.IGNORECASE):
            return f"\n--with {package.distribution} predicts the run as if {package.distribution} were installed here."
    return ""
