"""What is recognised as what, and how changes reach a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramcast.base.access import CodeGate
from vramcast.errors import CannotPredict, UsageError
from vramcast.jobs.load import load_job, with_overrides
from vramcast.jobs.readers import READERS, Request, readers, recognise
from vramcast.jobs.validation import make_job
from vramcast.jobs.yaml_file import parse_yaml

FOLDERS = Path(__file__).parent / "folders"


def test_every_reader_has_what_a_reader_needs() -> None:
    for name, reader in zip(READERS, readers(), strict=True):
        assert reader.NAME, name
        assert callable(reader.recognises)
        assert callable(reader.read)
        assert not reader.recognises(Path("there/is/no/such/file.zzz")), name


@pytest.mark.parametrize("name", [path.name for path in sorted(FOLDERS.iterdir()) if (path / "config.json").is_file()])
def test_a_model_folder(name: str) -> None:
    loaded = load_job(str(FOLDERS / name))
    config = json.loads((FOLDERS / name / "config.json").read_text())
    kind = "diffusers" if "_class_name" in config else "transformers"
    assert loaded.recognised_as.startswith(f"{kind} folder (")
    assert loaded.job.name == name
    assert loaded.job.components["model"].source == kind
    assert any(note.topic == "assumed" for note in loaded.notes)


def test_headers_of_weights_are_read(tmp_path: Path) -> None:
    header = json.dumps({
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [3, 4], "data_offsets": [0, 24]},
        "b": {"dtype": "F32", "shape": [], "data_offsets": [24, 28]},
    }).encode()  # fmt: skip
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    notes = {note.topic: note.text for note in load_job(str(tmp_path)).notes}
    assert notes["weights on disk"].startswith("13 parameters in safetensors files (BF16, F32)")


def test_a_pipeline_folder() -> None:
    loaded = load_job(str(FOLDERS / "cogvideox-5b"))
    assert loaded.recognised_as == "diffusers folder (CogVideoXPipeline)"
    modes = {name: component.mode for name, component in loaded.job.components.items()}
    assert modes == {"text_encoder": "frozen", "vae": "frozen", "transformer": "trained"}


def test_what_the_user_says_is_not_assumed() -> None:
    folder = str(FOLDERS / "bert-base")
    said = load_job(folder, {"precision": "fp32"})
    assert said.job.precision.preset == "fp32"
    assert "autocast" in " ".join(note.text for note in load_job(folder).notes)
    assert "autocast" not in " ".join(note.text for note in said.notes)


def test_a_job_file_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "vramcast.yaml").write_text(
        "components:\n  model: {transformers: ./model}\n  own: {factory: 'nets.py:build'}\nsizes: {batch: 10}\n"
    )
    for argument in (tmp_path, tmp_path / "vramcast.yaml"):
        loaded = load_job(str(argument), request=Request(gate=CodeGate(allowed=True)))
        assert loaded.recognised_as == "vramcast.yaml"
        assert loaded.job.name == tmp_path.name
        assert Path(loaded.job.components["model"].transformers or "") == tmp_path / "model"
        assert loaded.job.components["own"].factory == f"{tmp_path / 'nets.py'}:build"


def test_a_yaml_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("learning_rate: 1e-4\n")
    assert recognise(path) is None


@pytest.mark.parametrize("argument", ["tests.jobs.tiny:JOB", "tests.jobs.tiny:job"])
def test_a_python_function(argument: str) -> None:
    loaded = load_job(argument, {"sizes.batch": 3})
    assert loaded.recognised_as == "Python function"
    assert loaded.job.sizes == {"batch": 3}


def test_changes_at_every_depth() -> None:
    job = make_job({"components": {"model": {"timm": "resnet50"}}, "optimizer": ["adam", "sgd"]}, "job")
    changed = with_overrides(
        job,
        {
            "components.model.freeze": ["conv1"],
            "optimizer.1.arguments.momentum": 0.9,
            "optimizer.arguments.fused": True,
            "precision": "bf16",
            "evaluation.batch": 2,
        },
    )
    assert changed.components["model"].freeze == ["conv1"]
    assert [one.arguments for one in changed.optimizer] == [{"fused": True}, {"momentum": 0.9}]
    assert changed.precision.preset == "bf16"
    assert changed.evaluation is not None
    assert job.precision.preset is None


def test_the_batch_of_one_gpu_replaces_the_global_one() -> None:
    job = make_job({"components": {"m": {"timm": "a"}}, "gpus": {"count": 2, "global_batch": 8}}, "job")
    assert with_overrides(job, {"sizes.batch": 3}).effective_sizes["batch"] == 3


def test_yaml_numbers_and_lines() -> None:
    data, lines = parse_yaml("a: 1e-4\nb:\n  - c: 2.5E+3\n  - yes\n", "x")
    assert data == {"a": 1e-4, "b": [{"c": 2500.0}, True]}
    assert lines[("b", 0, "c")] == 3


def test_an_alias_or_two_is_fine() -> None:
    data, _ = parse_yaml("a: &x {k: 1}\nb: *x\n", "x")
    assert data == {"a": {"k": 1}, "b": {"k": 1}}


def test_control_characters_are_refused() -> None:
    with pytest.raises(UsageError, match="not YAML"):
        parse_yaml("a: \x00", "x")


@pytest.mark.parametrize(
    ("option", "meant"), [("--bacth", "--batch"), ("--batchsize=4", "--batch"), ("--presicion", "--precision")]
)
def test_a_misspelt_option(option: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    from vramcast.cli.main import main

    with pytest.raises(SystemExit):
        main(["predict", str(FOLDERS / "bert-base"), option, "4"])
    assert f"did you mean {meant}" in capsys.readouterr().err


def test_ultralytics_is_recognised_and_refused(tmp_path: Path) -> None:
    args = tmp_path / "args.yaml"
    args.write_text(
        "task: detect\nmode: train\nmodel: yolo11n.yaml\nimgsz: 640\nbatch: 16\nclose_mosaic: 10\nmosaic: 1.0\n"
    )
    with pytest.raises(CannotPredict, match=r"model: yolo11n.yaml.*train\(imgsz=640, batch=16\)"):
        load_job(str(args))
    with pytest.raises(CannotPredict, match=r"YOLO\('yolov8s.pt'\)"):
        load_job(None, request=Request(arguments=("yolo", "detect", "train", "model=yolov8s.pt", "imgsz=640")))
