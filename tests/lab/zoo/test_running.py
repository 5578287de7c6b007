"""A small zoo of one local repository: fetched, run, bundled, and told on the page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lab.zoo import bundle, page
from lab.zoo.execution import carry_out, predict
from lab.zoo.manifest import STAND_INS, Repository, Script
from lab.zoo.records import Records
from lab.zoo.workplace import SOURCE, checkout, missing_packages, prepare, workplace

TRAINING = """
import sys
import torch
import wandb
wandb.init(project="p").config.update({})
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
words = open(sys.argv[1]).read().split()
for _ in range(10):
    model(torch.randn(len(words), 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository in a folder of mirrors, and a cache of its own."""
    source = tmp_path / "mirror" / "some+one"
    (source / "examples").mkdir(parents=True)
    (source / "examples" / "train.py").write_text(TRAINING)
    (source / "picture.bin").write_bytes(bytes(2 << 20))
    (source / "other.py").write_text("")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=source, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=source, check=True, capture_output=True, text=True).stdout
    monkeypatch.setenv("VRAMCAST_ZOO_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.setenv("VRAMCAST_ZOO", str(tmp_path / "cache"))
    return Repository("some/one", commit.strip())


def script(repository: Repository, **fields: object) -> Script:
    usual = {"name": "one", "path": "examples/train.py", "kind": "vision", "style": "plain loop"}
    return Script(repository=repository, **{**usual, **fields})  # type: ignore[arg-type]


def test_a_checkout_has_the_files_of_the_commit_but_not_the_large_ones(repository: Repository) -> None:
    files = sorted(path.name for path in checkout(repository).rglob("*") if path.is_file())
    assert files == ["other.py", "train.py"]


def test_without_a_mirror_the_commit_is_fetched(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VRAMCAST_ZOO_MIRROR")
    monkeypatch.setattr("lab.zoo.workplace.ADDRESS", (tmp_path / "mirror" / "some+one").as_uri() + "#{name}")
    with pytest.raises(subprocess.CalledProcessError):
        checkout(repository)
    monkeypatch.setattr("lab.zoo.workplace.ADDRESS", (tmp_path / "mirror" / "some+one").as_uri())
    assert (checkout(repository) / "examples" / "train.py").read_text() == TRAINING


def test_only_the_folders_that_are_needed(repository: Repository) -> None:
    some = Repository(repository.name, repository.commit, ("examples",))
    assert [path.name for path in checkout(some).iterdir()] == ["examples"]


def test_the_workplace_is_made_anew(repository: Repository) -> None:
    example = script(
        repository, arguments="{data}/a.txt --out '{root}/b c'", environment={"WHERE": "{home}/x"},
        stand_ins={"checksums": "why", "wandb": "why"},
        data=({"recipe": "text", "names": ["a.txt"], "lines": 5, "words": 3},),
    )  # fmt: skip
    prepare(example)
    place = workplace(example)
    root = place.script.parents[1]
    assert place.arguments == [str(root.parent / "data" / "a.txt"), "--out", f"{root}/b c"]
    assert place.folder == root / "examples"
    assert place.environment["WHERE"] == str(root.parent / "home" / "x")
    assert place.environment["VRAMCAST_ZOO_PATCHES"] == "checksums"
    assert str(STAND_INS / "wandb") in place.environment["PYTHONPATH"].split(os.pathsep)
    assert [len(line.split()) for line in (root.parent / "data" / "a.txt").read_text().splitlines()] == [3] * 5
    (root / "written by a run").write_text("")
    prepare(example)
    assert not (root / "written by a run").exists()


def test_packages_that_are_missing_are_named(repository: Repository) -> None:
    assert missing_packages(script(repository, packages=("torch", "giraffes-in-a-zoo"))) == ["giraffes-in-a-zoo"]


@pytest.mark.slow
def test_a_script_is_predicted(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    example = script(repository, arguments="{data}/a.txt", stand_ins={"wandb": "no network"})
    prepare(example)
    (workplace(example).script.parents[2] / "data" / "a.txt").write_text("word " * 100)
    monkeypatch.setattr("lab.zoo.execution.subprocess.run", lambda *_, **__: None)  # it is prepared
    record = predict(example, "h200")
    assert record["outcome"] == "answered", record["message"]
    assert record["steps_made"] == 3
    weights, workspace = 4 * (1024 * 1024 + 1024), 32 << 20  # cuBLAS has one for each of the two threads
    assert 2 * weights < record["peak_allocated_bytes"] - 2 * workspace < 4 * weights
    failing = predict(script(repository, arguments="nowhere.txt", stand_ins={"wandb": "no network"}), "h200")
    assert failing["outcome"] == "not predicted"
    assert "FileNotFoundError" in failing["message"]


def test_no_more_at_a_time_than_there_is_memory_for(repository: Repository) -> None:
    inside: list[str] = []
    most = 0

    def work(example: Script) -> dict[str, object]:
        nonlocal most
        inside.append(example.name)
        most = max(most, len(inside))
        inside.remove(example.name)
        return {"outcome": "measured"}

    done: list[str] = []
    scripts = [script(repository, name=str(number)) for number in range(6)]
    carry_out(
        scripts, work, lambda example, _: done.append(example.name), at_a_time=6, memory_bytes=lambda _: 60,
        limit_bytes=100,
    )  # fmt: skip
    assert sorted(done) == [str(number) for number in range(6)]
    assert most == 1


def test_a_bundle_is_laid_out_again(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, files in {
        "giraffe-1-py3-none-any": ["giraffe/__init__.py", "giraffe/tests/test_neck.py", "giraffe/neck.h"],
        "torch-1-py3-none-any": ["torch/__init__.py"],
    }.items():
        with zipfile.ZipFile(wheels / f"{name}.whl", "w") as wheel:
            for file in files:
                wheel.writestr(file, "")
    bundle.make([script(repository)], wheels, tmp_path / "bundle")
    monkeypatch.setenv("VRAMCAST_ZOO", str(tmp_path / "other machine"))
    monkeypatch.delenv("VRAMCAST_ZOO_MIRROR")
    bundle.unpack(tmp_path / "bundle")
    assert (checkout(repository) / "examples" / "train.py").read_text() == TRAINING
    laid_out = [path for path in bundle.packages().rglob("*") if path.is_file()]
    assert laid_out == [bundle.packages() / "giraffe" / "__init__.py"]  # torch is here already


def test_records_of_two_processes_both_stay(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    first, second = Records(path), Records(path)
    first.keep("a", {"outcome": "answered"})
    second.keep("b", {"outcome": "refused"})
    assert json.loads(path.read_text()) == {"a": {"outcome": "answered"}, "b": {"outcome": "refused"}}


def test_the_page_sets_predicted_beside_measured(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted, measured = tmp_path / "predicted.json", tmp_path / "measured.json"
    size = 1 << 30
    answered = {"outcome": "answered", "seconds": 12.3, "notes": [{"text": "as eager code", "where": "a.py:1"}]}
    predicted.write_text(
        json.dumps({
            "near": {**answered, "made_steps_peak_reserved_bytes": size},
            "far": {**answered, "made_steps_peak_reserved_bytes": 2 * size},
            "stopped": {"outcome": "not predicted", "message": "vramcast: a.py:3: no rule for x"},
        })
    )  # fmt: skip
    real = {"outcome": "measured", "gpu": "NVIDIA H200", "peak_reserved_bytes": size}
    measured.write_text(json.dumps({"near": real, "far": real}))
    monkeypatch.setattr(page, "PREDICTED", predicted)
    monkeypatch.setattr(page, "MEASURED", measured)
    target, summary = tmp_path / "zoo.md", tmp_path / "accuracy.md"
    summary.write_text(f"Before.\n{page.BEGIN}\nold\n{page.END}\nAfter.\n")
    stand_ins = {"wandb": "no network"}
    scripts = [script(repository, name=name, stand_ins=stand_ins) for name in ("near", "far", "stopped")]
    page.write(scripts, target, {summary: "docs/"})
    text = target.read_text()
    short = " ".join(summary.read_text().split())
    assert short.startswith("Before. ") and short.endswith(" After.") and "old" not in short
    assert (
        "2 of 3 public training scripts" in short
        and "Of the 2 that" in short
        and "1 were predicted within 1 %" in short
    )
    assert "(docs/lab/zoo.md)" in short
    assert "| answered | 2 of 3 (67%) |" in text
    assert "| reserved memory within 1 % | 1 of 2 (50%) |" in text
    assert "| 2.000 | 1.000 | +100.00% | 12 |" in text
    assert "- **far**, +100.0%: as eager code (a.py:1)" in text
    assert "- **stopped** (not predicted): a.py:3: no rule for x" in text
    assert "- near: wandb stood in for: no network" in text


def test_patches_are_put_in(tmp_path: Path) -> None:
    program = (
        "import numpy, torchvision.datasets.utils as utils\n"
        "print(numpy.Inf, numpy.fromstring(b'\\x01\\x02', dtype=numpy.uint8).tolist(), numpy.int(3.5),\n"
        "      utils.check_integrity(__file__, 'no such sum'))\n"
    )
    path = tmp_path / "program.py"
    path.write_text(program)
    environment = {
        **os.environ, "VRAMCAST_ZOO_PATCHES": "checksums,old_numpy",
        "PYTHONPATH": os.pathsep.join([str(STAND_INS / "patches"), str(SOURCE)]),
    }  # fmt: skip
    told = subprocess.run(
        [sys.executable, str(path)], env=environment, check=True, capture_output=True, text=True, timeout=120
    ).stdout
    assert told.split() == ["inf", "[1,", "2]", "3", "True"]
