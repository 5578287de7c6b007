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


def hint(text: str) -> str:
    """What to do where an error names a package that has a stand-in and is not here; nothing where it does not."""
    for package in _ALL:
        if package.name in sys.modules:
            continue
        if re.search(rf"\b({package.name}|{re.escape(package.distribution)})\b", text, re.IGNORECASE):
            return f"\n--with {package.distribution} predicts the run as if {package.distribution} were installed here."
    return ""
