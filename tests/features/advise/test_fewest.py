"""The fewest cards that hold a job: each suggestion comes out the same when it is predicted again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramcast.base.errors import CannotPredict
from vramcast.cli.main import main
from vramcast.features.advise.fewest import COUNTS, FewestCards, fewest_cards
from vramcast.features.advise.layout_configs import layout_config
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import LoadedJob, load_job, with_overrides
from vramcast.jobs.readers import Request
from vramcast.prediction.predict import predict

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 8192,
    "num_hidden_layers": 9, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 2000,
    "tie_word_embeddings": False,
}  # fmt: skip
CARD = GpuSpec.from_memory("3GiB")
SIZES = {"sizes.batch": 1, "sizes.sequence": 128, "precision": "bf16"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedJob:
    return load_job(str(folder), SIZES)


@pytest.fixture(scope="module")
def found(loaded: LoadedJob) -> FewestCards:
    return fewest_cards(loaded, CARD, workers=1)


def test_each_suggestion_is_what_predict_says(loaded: LoadedJob, found: FewestCards) -> None:
    assert [way.text for way in found.ways]
    assert [way.count for way in found.ways] == sorted(way.count for way in found.ways)
    for way in found.ways:
        again = predict(LoadedJob(job=with_overrides(loaded.job, way.changes)), CARD)
        assert again.fits
        assert again.peak_reserved_bytes == way.prediction.peak_reserved_bytes
        assert again.peak_allocated_bytes == way.prediction.peak_allocated_bytes
        assert way.next_smaller == COUNTS[COUNTS.index(way.count) - 1]
        fewer = with_overrides(loaded.job, {**way.changes, "gpus.count": way.next_smaller, "gpus.per_node": 1})
        assert not predict(LoadedJob(job=fewer), CARD).fits


def test_the_accelerate_config_reads_back_as_the_same_run(
    folder: Path, tmp_path: Path, loaded: LoadedJob, found: FewestCards
) -> None:
    way = found.ways[0]
    path = tmp_path / "accelerate.yaml"
    path.write_text(layout_config(loaded, way.changes, path))
    sizes = {key: value for key, value in SIZES.items() if key != "precision"}
    conf = {key: value for key, value in way.changes.items() if key == "allocator_conf"}
    again = load_job(str(path), {**sizes, **conf}, Request(model=str(folder)))
    assert again.job.gpus.count == way.count
    assert predict(again, CARD).peak_reserved_bytes == way.prediction.peak_reserved_bytes


@pytest.mark.exhaustive
def test_what_fits_one_card_needs_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["advise", str(folder), "--gpu", "h100", "--batch", "1", "--seq", "128", "--fewest-gpus"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("1 H100 80GB HBM3, FSDP, without checkpointing: needs")


def test_pipelines_are_not_searched(folder: Path) -> None:
    loaded = load_job(str(folder), {**SIZES, "gpus.count": 4, "gpus.pipeline": 4})
    with pytest.raises(CannotPredict, match="leave tensor and pipeline parallel out"):
        fewest_cards(loaded, CARD, workers=1)
