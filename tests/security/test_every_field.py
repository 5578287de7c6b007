"""Hostile values in every field of a job, every key of every reader and of a model's config: nothing is run, written,
fetched, or read outside the root."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

pytest.importorskip("torch")  # where it is loaded already, predict forks no processes of its own
pytest.importorskip("transformers")

from tests.security.audit import watching
from tests.security.hostile import CONFIG, Hostile, files_in, make
from vramcast.base.access import Limits
from vramcast.cli.main import main
from vramcast.jobs.schema import Job

CONFIGS = Path(__file__).parents[1] / "jobs" / "configs"
BASE: dict[str, Any] = {
    "components": {"model": {"transformers": "model", "inputs": {"input_ids": "ids"}}},
    "inputs": {"ids": {"shape": ["batch", "sequence"], "dtype": "int64", "below": 64}},
    "sizes": {"batch": 1, "sequence": 4},
    "loss": [{"kind": "mean"}],
    "optimizer": [{"name": "sgd"}],
}
NAMES = {"components": "model", "inputs": "ids", "sizes": "batch", "scenarios": "other"}
LOADING = (
    "pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "weights",
    "weights_backbone", "attn_implementation", "experts_implementation", "trust_remote_code", "allow_all_kernels",
    "custom_generate", "weights_only", "state_dict", "target_lang", "auto_map", "attribute_map", "_name_or_path",
    "quantization_config", "pretrained_model_name_or_path", "config", "save_directory", "__class__", "backbone",
    "use_pretrained_backbone", "backbone_config", "model_args", "_attn_implementation", "custom_pipelines",
    "_commit_hash", "adapter", "kernel_config", "dtype", "torch_dtype", "sub_configs", "use_timm_backbone",
)  # fmt: skip
"""Keys by which libraries are told to load something, or that change what other keys mean."""


def fields(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted key of every field, of sections inside sections too."""
    for name, field in section.model_fields.items():
        key = f"{prefix}{name}"
        yield key
        for below, inner in _sections(field.annotation, name):
            yield from fields(inner, f"{key}.{below}")


def _sections(annotation: Any, name: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """(how to get there, section) in the type of a field."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "", annotation
    elif origin is dict:
        yield from ((f"{NAMES[name]}.{below}", one) for below, one in _sections(inside[1], name))
    elif origin is list:
        yield from ((f"0.{below}", one) for below, one in _sections(inside[0], name))
    elif inside and (origin in (Union, UnionType) or hasattr(annotation, "__metadata__")):
        for one in inside:
            yield from _sections(one, name)


FIELDS = tuple(dict.fromkeys(fields(Job)))
SHARE = int(os.environ.get("VRAMCAST_HOSTILE_SHARE", "300"))
"""One value in this many is tried in each key of the readers and of a model's config; 1 tries them all, in hours."""


def _way(number: int) -> str:
    """Files go to the command line and to the server in turn; to both where every value is tried."""
    return "both" if SHARE == 1 else ("command line", "server")[number % 2]


FREE = ("config", "arguments", "options")
"""Fields that hold any keys."""


def put(data: Any, key: str, value: Any) -> Any:
    """A copy of `data` with `value` at the dotted key."""
    data = copy.deepcopy(data)
    *path, last = key.split(".")
    place = data
    for part in path:
        if isinstance(place, list):
            place = place[int(part)]
            continue
        if not isinstance(place.get(part), (dict, list)):
            place[part] = {}
        place = place[part]
    place[int(last) if isinstance(place, list) else last] = value
    return data


class Attack:
    """Each file through the command line and through the server; what they did is looked at."""

    def __init__(self, hostile: Hostile, capsys: pytest.CaptureFixture[str]) -> None:
        self.hostile = hostile
        self._capsys = capsys
        self._before = files_in(hostile.root.parent)
        self.tried = 0

    def __call__(self, path: Path, *options: str, changes: dict[str, Any] | None = None, by: str = "both") -> None:
        before = path.read_bytes() if path.is_file() else b""
        search = list(sys.path)
        with watching() as done:
            if changes is None and by != "server":
                code = main(["predict", str(path), "--gpu", "rtx-4090", "--steps", "1", *options])
                assert code in (0, 1, 2, 3)
            if by != "command line":
                self._ask(path, changes or {})
        said = self._capsys.readouterr()
        what = f"{path.read_text() if path.is_file() else path}\n{changes}\n{said.err}"
        assert not done, f"{done}\n{what}"
        assert not self.hostile.mark.exists(), what
        assert sys.path == search, what
        assert "Traceback" not in said.err, what
        assert path.is_dir() or path.read_bytes() == before
        self.tried += 1

    def _ask(self, path: Path, changes: dict[str, Any]) -> None:
        from vramcast.mcp import server
        from vramcast.mcp.answers import answer_predict
        from vramcast.mcp.inputs import JobInput

        root = self.hostile.root
        wish = JobInput(path=str(path.relative_to(root)), changes=changes)
        limits = Limits(root.resolve())
        context: Any = None  # there is nobody to report progress to
        server._in_thread(limits, context, partial(answer_predict, root, wish, "rtx-4090", None, 1, "summary"))

    def nothing_changed(self, *but: Path) -> None:
        now = files_in(self.hostile.root.parent)
        for path in but:
            now.pop(str(path.relative_to(self.hostile.root.parent)), None)
        assert now == self._before


@pytest.fixture
def attack(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Attack:
    pytest.importorskip("mcp.server.mcpserver")
    hostile = make(tmp_path)
    monkeypatch.chdir(hostile.root)
    return Attack(hostile, capsys)


def test_every_field_is_known() -> None:
    """The walk reaches all sections."""
    assert len(FIELDS) > 130
    for key in ("script.path", "step.factory", "components.model.factory", "components.model.lora.targets",
                "components.model.checkpointing.modules", "loss.0.factory", "optimizer.0.arguments", "target.gpu",
                "inputs.ids.shape", "offload.components", "evaluation.sizes", "diffusion.clean"):  # fmt: skip
        assert key in FIELDS


def some(values: list[Any], number: int, share: int) -> list[Any]:
    """One in `share` of the values, at least one; others for the next key."""
    share = min(share, len(values))
    return values[number % share :: share]


def _hostile_jobs(hostile: Hostile, keys: tuple[str, ...], share: int) -> Iterator[dict[str, Any]]:
    for i, key in enumerate(keys):
        for value in some(hostile.values(), i, share):
            if key == "torch_compile" and value is True:
                continue  # what it asks for: Inductor writes its code into a folder of ours, and runs it there
            yield put(BASE, key, value)
            if key.endswith(("inputs", "prepare", "shape", "targets", "modules", "parameters", "wrap", "freeze")):
                yield put(BASE, key, [value])


QUICK = tuple(key for key in FIELDS if key.rpartition(".")[2] in (
    "method", "prepare", "inputs", "factory", "script", "path", "class_name", "trust_remote_code", "transformers",
    "prediction", "clean", "shape",
))  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "share"),
    [
        pytest.param(QUICK, 2, id="those-that-name-something"),
        pytest.param(tuple(key for key in FIELDS if key not in QUICK), 20, id="all-others", marks=pytest.mark.slow),
    ],
)
def test_no_field_of_a_job_reaches_code_or_files(attack: Attack, keys: tuple[str, ...], share: int) -> None:
    file = attack.hostile.root / "job.yaml"
    for job in _hostile_jobs(attack.hostile, keys, share):
        file.write_text(yaml.safe_dump(job))
        attack(file, by=_way(attack.tried))
    assert attack.tried > 200
    attack.nothing_changed(file)


def test_no_change_that_an_agent_asks_for_does(attack: Attack) -> None:
    file = attack.hostile.root / "job.yaml"
    file.write_text(yaml.safe_dump(BASE))
    for i, key in enumerate(QUICK):
        for value in some(attack.hostile.values(), i + 1, 2):  # those that the files above did not say
            attack(file, changes={key: value})
    attack.nothing_changed(file)


@pytest.mark.parametrize(
    ("source", "field"),
    [
        *((source, "arguments") for source in ("transformers", "timm", "torchvision", "diffusers")),
        *(
            pytest.param(source, field, marks=pytest.mark.slow)
            for source, field in (("transformers", "config"), ("transformers", "options"), ("diffusers", "config"))
        ),
    ],
)
def test_no_free_key_does(attack: Attack, source: str, field: str) -> None:
    pytest.importorskip(source)
    hostile = attack.hostile
    (hostile.root / "vae").mkdir()
    (hostile.root / "vae" / "config.json").write_text(json.dumps({
        "_class_name": "AutoencoderKL", "block_out_channels": [8], "norm_num_groups": 4, "sample_size": 8,
    }))  # fmt: skip
    folders = {"transformers": "model", "diffusers": "vae", "timm": "resnet10t", "torchvision": "squeezenet1_1"}
    component = {source: folders[source]}
    values = [str(hostile.root / "evil.bin"), "evil:build", "kernels-community/flash-attn", True,
              {"a": str(hostile.outside / "model"), "file": "evil.bin"}]  # fmt: skip
    file = hostile.root / "job.yaml"
    for i, key in enumerate(LOADING):
        # One value for each: what a key may be is asked before what it says. Every other through the server.
        value = values[i % len(values)] if field == "config" else values[0]
        job = {"components": {"model": {**component, field: {key: value}}}, "sizes": {"batch": 1, "sequence": 4}}
        file.write_text(yaml.safe_dump(job))
        attack(file, by="server" if i % 2 and field != "options" else "command line")
    attack.nothing_changed(file, *(hostile.root / "vae").iterdir())


@pytest.mark.slow
def test_no_key_of_a_models_config_does(attack: Attack) -> None:
    folder = attack.hostile.root / "model"
    file = folder / "config.json"
    for i, key in enumerate((*CONFIG, *LOADING)):
        for value in some(attack.hostile.values(), i, SHARE):
            file.write_text(json.dumps({**CONFIG, key: value}))
            attack(folder, by="server" if i % 2 else "command line")


@pytest.mark.parametrize(
    "config",
    [
        {"attribute_map": {"notes": "auto_map"}, "notes": {"AutoModelForCausalLM": "evil.Mine"}},
        {"auto_map": {"AutoConfig": "evil.Mine", "AutoModelForCausalLM": "evil.Mine"}, "model_type": "mine"},
        {"model_type": "timm_wrapper", "architecture": "resnet10t", "model_args": {"checkpoint_path": "../evil.bin"},
         "architectures": ["TimmWrapperModel"]},
        {"model_type": "timm_wrapper", "architecture": "local-dir:../outside/model",
         "architectures": ["TimmWrapperModel"]},
        {"model_type": "timm_backbone", "backbone": "hf-hub:someone/x", "architectures": ["TimmBackbone"]},
        {"model_type": "detr", "architectures": ["DetrModel"], "backbone": "someone/x", "use_timm_backbone": False},
        {"model_type": "detr", "architectures": ["DetrModel"], "backbone": "model", "use_timm_backbone": False},
        {"_attn_implementation": "kernels-community/flash-attn"},
        {"architectures": ["pipeline"]},
        {"architectures": ["__builtins__"]},
        {"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"], "target_lang": "x", "_name_or_path": "."},
        {"model_type": "encoder-decoder", "architectures": ["EncoderDecoderModel"],
         "decoder": {"model_type": "llama"},
         "encoder": {"model_type": "mine", "auto_map": {"AutoConfig": "evil.Mine"}}},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("trusted", [False, True])
def test_a_folder_brings_no_code(attack: Attack, config: dict[str, Any], trusted: bool) -> None:
    folder = attack.hostile.root / "model"
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    file = attack.hostile.root / "job.yaml"
    component = {"transformers": "model", **({"trust_remote_code": True} if trusted else {})}
    file.write_text(yaml.safe_dump({"components": {"model": component}, "sizes": {"batch": 1, "sequence": 4}}))
    attack(file)
    attack(folder)


def _leaves(data: Any, prefix: str = "") -> Iterator[str]:
    for name, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield f"{prefix}{name}"
        yield from _leaves(value, f"{prefix}{name}.")


READERS = ("accelerate_ddp.yaml", "accelerate_deepspeed.yaml", "diffsr_unet.yaml", "ds_zero0.json", "kair_gopro.json",
           "lightning.yaml", "llama_factory.yaml", "training_args.json")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_no_key_of_a_reader_does(attack: Attack, name: str) -> None:
    text = (CONFIGS / name).read_text()
    data = json.loads("\n".join(line.partition("//")[0] for line in text.splitlines())) if name.endswith(
        ".json") else yaml.safe_load(text)  # fmt: skip
    file = attack.hostile.root / name
    model = ("--model", "model")
    for i, key in enumerate(_leaves(data)):
        for value in some(attack.hostile.values(), i, SHARE):
            file.write_text(json.dumps(put(data, key, value)))
            attack(file, *(() if name.startswith(("kair", "lightning", "diffsr")) else model), by=_way(i))


@pytest.mark.parametrize("words", ["python evil.py", "bash evil.sh", "accelerate launch --config_file evil.py evil.py"])
def test_a_shell_script_is_read_and_never_run(attack: Attack, words: str) -> None:
    file = attack.hostile.root / "train.sh"
    mark = attack.hostile.mark
    file.write_text(
        f"touch {mark}\nX=$(touch {mark})\n`touch {mark}`\neval touch {mark}\n"
        f"{words} --model_name_or_path model --per_device_train_batch_size 1 --output_dir $(touch {mark})\n"
    )
    attack(file)


def test_a_module_of_the_jobs_folder_does_not_stand_in_for_a_library(attack: Attack) -> None:
    """`python -m vramcast` has the current folder on the search path."""
    import subprocess

    mark = attack.hostile.mark
    for name in ("timm", "transformers", "peft", "yaml", "rich"):
        (attack.hostile.root / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')\nraise SystemExit(9)\n")
    job = {**BASE, "components": {"model": {**BASE["components"]["model"], "mode": "lora"}}}
    (attack.hostile.root / "job.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "vramcast", "predict", "job.yaml", "--gpu", "rtx-4090"]
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": source}, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not mark.exists()
