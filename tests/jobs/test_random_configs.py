"""Configs of other tools with one value replaced by anything: a job or a message, never a traceback."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vramcast.base.access import CodeGate
from vramcast.errors import VramcastError
from vramcast.jobs.editing.rewrite import rewrite
from vramcast.jobs.equality import same_run
from vramcast.jobs.load import load_job, with_overrides
from vramcast.jobs.readers import Request, documents
from vramcast.jobs.text_files import reading_instead

CONFIGS = Path(__file__).parent / "configs"
MODEL = str(CONFIGS / "llama-tiny")
REQUESTS = {
    "training_args.json": Request(model=MODEL),
    "training_args.yaml": Request(model=MODEL),
    "llama_factory.yaml": Request(model=MODEL),
    "accelerate_ddp.yaml": Request(model=MODEL),
    "accelerate_fsdp.yaml": Request(model=MODEL),
    "accelerate_deepspeed.yaml": Request(model=MODEL),
    "ds_zero0.json": Request(model=MODEL),
    "ds_zero3.json": Request(model=MODEL),
    "lightning.yaml": Request(parts=(str(CONFIGS / "lightning_inputs.yaml"),), gate=CodeGate(allowed=True)),
    "kair_gopro.json": Request(model="tests.jobs.lit:Clip"),
    "diffsr_unet.yaml": Request(model="tests.jobs.lit:UNet2d"),
    "torchtitan_debug.toml": Request(),
}
SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["auto", "none", "-1", "bf16", "cpu", "all", "../..", "a.b.C", "x:y"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=6), below, max_size=3),
    max_leaves=5,
)


def _places(data: Any, key: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [key] if key else []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        found += _places(value, (*key, name))
    return found


def _replaced(data: Any, key: tuple[Any, ...], value: Any) -> Any:
    if not key:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[key[0]] = _replaced(copy[key[0]], key[1:], value)
    return copy


def _data(name: str) -> Any:
    path = CONFIGS / name
    if path.suffix == ".toml":
        return tomllib.loads(path.read_text())
    return documents.read_document(path).data if path.suffix == ".json" else yaml.safe_load(path.read_text())


@pytest.mark.parametrize("name", REQUESTS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=st.data())
def test_one_value_is_anything(name: str, chosen: st.DataObject, tmp_path: Path) -> None:
    data = _data(name)
    value = chosen.draw(VALUES)
    changed = _replaced(data, chosen.draw(st.sampled_from(_places(data))), value)
    path = tmp_path / Path(name).with_suffix(".json" if name.endswith("json") else ".yaml")
    path.write_text(json.dumps(changed) if name.endswith("json") else yaml.safe_dump(changed))
    if name.endswith(".toml"):
        from vramcast.jobs.readers import torchtitan

        read = lambda: torchtitan.read(path, REQUESTS[name])  # noqa: E731  (the same keys, written as YAML)
    else:
        read = lambda: load_job(str(path), request=REQUESTS[name])  # noqa: E731
    documents._peeked.cache_clear()
    try:
        read()
    except VramcastError as error:
        assert str(error)


CHANGES: dict[str, Any] = {
    "accumulation": 6,
    "precision": "fp32",
    "checkpointing": "all",
    "optimizer": "sgd",
    "allocator_conf": "expandable_segments:True",
}


@pytest.mark.parametrize("name", [name for name in REQUESTS if not name.endswith("toml")])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=st.data())
def test_changes_are_said_or_left(name: str, chosen: st.DataObject, tmp_path: Path) -> None:
    """Whatever else the config says: what is written and what is left beside it make the job."""
    data = _data(name)
    changed = _replaced(data, chosen.draw(st.sampled_from(_places(data))), chosen.draw(VALUES))
    path = tmp_path / name
    path.write_text(json.dumps(changed) if name.endswith("json") else yaml.safe_dump(changed))
    documents._peeked.cache_clear()
    try:
        loaded = load_job(str(path), request=REQUESTS[name])
    except VramcastError:
        return
    found = rewrite(loaded, CHANGES)
    with reading_instead(found.texts):
        again = load_job(str(path), found.beside, REQUESTS[name])
    assert same_run(again.job, with_overrides(loaded.job, CHANGES))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(
        st.sampled_from(
            ["--bf16", "--optim", "sgd", "--deepspeed", "--fsdp", "full_shard", "--lora_r", "8", "-1", "{}", "{", "=",
             "--", "train.py", "-m", "torchrun", "--nproc_per_node", "accelerate", "--config_file", "$X", "trl", "",
             "--=", "--a=", "--model_name_or_path", "~nobody"]
        )
        | st.text(max_size=6),
        max_size=10,
    )
)  # fmt: skip
def test_any_words_as_flags(words: list[str]) -> None:
    try:
        load_job(MODEL, request=Request(arguments=tuple(words)))
    except VramcastError as error:
        assert str(error)
