"""The corpus as data: every entry names a factory that exists, takes its arguments, and keeps the protocol."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from lab.measuring.measure_corpus import Workload, load_corpus
from vramcast.base.factories import check_arguments, load_factory

CORPUS = load_corpus()
WORKLOADS = Path(__file__).parents[3] / "lab" / "workloads"
FAMILIES = {
    "language", "vision", "segmentation", "detection", "diffusion", "video", "speech", "recurrent", "operator", "gan",
    "recommender", "graph", "block", "seed",
}  # fmt: skip
PRECISIONS = {"fp32", "tf32", "fp16", "bf16", "bf16-weights", "fp16-frozen"}
OPTIMIZERS = {
    "sgd", "sgd-momentum", "sgd-nesterov-fused", "adam", "adam-amsgrad", "adam-fused", "adamw", "adamw-fused",
    "adamw-loop", "adamw8bit", "adagrad", "adadelta", "rmsprop", "rmsprop-centered", "adafactor",
    "adafactor-transformers", "nadam", "radam", "adamax", "asgd", "rprop", "lion-own", "muon",
}  # fmt: skip


def test_the_corpus_covers_what_it_promises() -> None:
    tags = {tag for workload in CORPUS for tag in workload.tags}
    assert len(CORPUS) >= 60
    assert tags >= FAMILIES
    assert tags >= PRECISIONS
    assert tags >= OPTIMIZERS
    assert {"checkpointing", "channels-last", "lora", "double-backward", "accumulation", "sparse-gradients"} <= tags


def test_names_are_unique_and_fit_file_names() -> None:
    names = [workload.name for workload in CORPUS]
    assert len(set(names)) == len(names)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in names)


@pytest.mark.parametrize("workload", CORPUS, ids=lambda w: w.name)
def test_an_entry_matches_its_factory(workload: Workload) -> None:
    factory = load_factory(workload.factory)
    check_arguments(factory, workload.args)
    for parameter in inspect.signature(factory).parameters.values():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.default is not inspect.Parameter.empty
    assert set(workload.tags) & FAMILIES
    assert set(workload.tags) & PRECISIONS
    assert set(workload.tags) & OPTIMIZERS
    assert 1 <= workload.gib <= 120
    # Tags are written by hand: they must agree with what the factory will do, defaults included.
    effective = {name: p.default for name, p in inspect.signature(factory).parameters.items()} | workload.args
    if "optimizer" in effective:
        assert effective["optimizer"] in workload.tags
    if "precision" in effective and "bf16-weights" not in workload.tags:
        assert effective["precision"] in workload.tags


@pytest.mark.parametrize("path", sorted(WORKLOADS.glob("*.py")), ids=lambda p: p.stem)
def test_workloads_are_ordinary_code(path: Path) -> None:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    assert not {name for name in modules if name.split(".")[0] == "vramcast"}
    top_level = {n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.ImportFrom)}
    optional = {"transformers", "diffusers", "timm", "peft", "torchvision", "torchaudio", "bitsandbytes"}
    assert not {n.module for n in top_level if (n.module or "").split(".")[0] in optional}
