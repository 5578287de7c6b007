"""Make `import transformer_engine` find a checkout of its Python code and the extension of this folder."""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

from lab.published.engine_kernels import apex, extension, flash


def install(checkout: Path, version: str) -> None:
    """`checkout` is the root of TransformerEngine's repository at the revision that is to run."""
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # its way to be imported where no library is built
    for name in ("onnxscript", "onnxscript.onnx_opset", "onnx"):  # for its export, which is not used
        sys.modules.setdefault(name, MagicMock())
    apex.install()
    flash.install()
    sys.modules["transformer_engine_torch"] = extension
    package = types.ModuleType("transformer_engine")
    package.__path__ = [str(checkout / "transformer_engine")]
    package.__version__ = version  # type: ignore[attr-defined]
    sys.modules["transformer_engine"] = package
    common = importlib.import_module("transformer_engine.common")
    common.load_framework_extension = lambda framework: None  # type: ignore[attr-defined]
    package.common = common  # type: ignore[attr-defined]
    package.pytorch = importlib.import_module("transformer_engine.pytorch")  # type: ignore[attr-defined]
