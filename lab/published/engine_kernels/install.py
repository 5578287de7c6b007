"""Make `import transformer_engine` find a checkout of its Python code, as it was at the revision that is to run."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

from lab.published.engine_kernels import apex, flash


def install(checkout: Path, version: str) -> None:
    """`checkout` is the root of TransformerEngine's repository at the revision that is to run."""
    for name in ("onnxscript", "onnxscript.onnx_opset", "onnx"):  # for its export, which is not used
        sys.modules.setdefault(name, MagicMock())
    apex.install()
    flash.install()
    package = types.ModuleType("transformer_engine")
    package.__path__ = [str(checkout / "transformer_engine")]
    package.__version__ = version  # type: ignore[attr-defined]
    sys.modules["transformer_engine"] = package
    package.common = importlib.import_module("transformer_engine.common")  # type: ignore[attr-defined]
    package.pytorch = importlib.import_module("transformer_engine.pytorch")  # type: ignore[attr-defined]
