"""What is said of a package that is not there, or of a name that its stand-in lacks."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import vramcast
from vramcast.card.stand_ins.known import absent


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError(name="flash_attn"), "--with flash-attn predicts the run"),
        (ModuleNotFoundError(name="apex.mlp"), "The stand-in that vramcast has for apex has no more"),
        (ImportError(name="xformers"), "The stand-in that vramcast has for xformers has no more"),
        (AttributeError("module 'apex.optimizers' has no attribute 'X'"), "The stand-in that vramcast has for apex"),
        (ModuleNotFoundError(name="spconv.pytorch"), "spconv is compiled CUDA code, which a virtual card cannot run"),
        (ModuleNotFoundError(name="transformer_engine"), "`pip install transformer_engine einops onnxscript` does not"),
        (ModuleNotFoundError(name="unsloth"), "`pip install unsloth` does not need a GPU"),
        (ModuleNotFoundError(name="mine"), "runs the script with PYTHON: what the script imports must be installed"),
    ],
)
def test_what_to_do(error: Exception, said: str) -> None:
    assert said in absent(error, "PYTHON")


def test_other_errors_are_about_no_package() -> None:
    assert absent(ImportError("cannot import name", name="mine"), "PYTHON") == ""
    assert absent(ValueError("apex"), "PYTHON") == ""


def test_a_package_asked_for_goes_before_one_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed one cannot load its kernels without a GPU."""
    (tmp_path / "causal_conv1d.py").write_text("mine = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with vramcast.virtual_gpu("h200", packages=["causal-conv1d"]):
        assert not hasattr(importlib.import_module("causal_conv1d"), "mine")
    with vramcast.virtual_gpu("h200"):
        assert importlib.import_module("causal_conv1d").mine
    del sys.modules["causal_conv1d"]
