"""The fastest way to divide a job, and the cheapest card: each suggestion comes out the same when it is read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.cli.main import main
from vramcast.features.advise.cheapest import read_prices
from vramcast.features.advise.layout import layouts
from vramcast.features.advise.layout_configs import layout_config
from vramcast.features.advise.layouts import FastestLayouts, fastest_layouts
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import LoadedJob, load_job, with_overrides
from vramcast.jobs.readers import Request
from vramcast.prediction.ranks import predict_distinct_ranks

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 4096,
    "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 2000,
    "tie_word_embeddings": False,
}  # fmt: skip
CARD = GpuSpec.from_memory("2GiB")
SIZES = {"sizes.batch": 1, "sizes.sequence": 128, "precision": "bf16", "gpus.count": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedJob:
    return load_job(str(folder), SIZES)


@pytest.fixture(scope="module")
def found(loaded: LoadedJob) -> FastestLayouts:
    return fastest_layouts(loaded, CARD, workers=1)


def test_the_samples_of_a_step_stay(loaded: LoadedJob) -> None:
    ways = list(layouts(loaded.job))
    assert {way.text.partition(",")[0] for way in ways} >= {"DDP", "FSDP", "FSDP + TP 2", "TP 4", "FSDP + PP 2", "PP 4"}
    for way in ways:
        job = with_overrides(loaded.job, way.changes)
        assert job.effective_sizes["batch"] * job.accumulation * job.gpus.data == 4, way.text


def test_each_way_is_what_predict_says(loaded: LoadedJob, found: FastestLayouts) -> None:
    assert 3 <= len(found.ways) <= 6 and found.considered == 14
    assert [way.step_seconds for way in found.ways] == sorted(way.step_seconds for way in found.ways)
    for way in found.ways:
        again, _ = predict_distinct_ranks(LoadedJob(job=with_overrides(loaded.job, way.changes)), CARD)
        assert again.fits
        assert again.peak_reserved_bytes == way.prediction.peak_reserved_bytes
        # Python's calls between ops count for the time, and libraries make some of them once a process.
        assert again.prediction.step_seconds == pytest.approx(way.step_seconds, rel=0.005)


@pytest.mark.parametrize("suffix", [".yaml", ".toml"])
def test_configs_read_back_as_the_same_run(folder: Path, tmp_path: Path, loaded: LoadedJob, suffix: str) -> None:
    for number, way in enumerate(layouts(loaded.job)):
        if suffix == ".yaml" and (way.stages > 1 or way.text == "DDP, checkpointed"):
            continue  # accelerate has no pipelines, and leaves checkpoints to the script
        if suffix == ".yaml" and way.text.startswith("TP") and way.text.endswith("checkpointed"):
            continue
        path = tmp_path / f"{number}{suffix}"
        path.write_text(layout_config(loaded, way.changes, path))
        given = with_overrides(loaded.job, way.changes)
        of_script = {"sizes.batch": given.sizes["batch"], "sizes.sequence": 128} if suffix == ".yaml" else {}
        again = load_job(str(path), of_script, Request(model=str(folder))).job
        for name in ("count", "tensor", "pipeline", "data", "copies", "effective_strategy", "reshard_after_forward"):
            assert getattr(again.gpus, name) == getattr(given.gpus, name), (way.text, name)
        assert again.effective_sizes == given.effective_sizes, way.text
        assert again.accumulation == given.accumulation, way.text
        assert again.checkpointing.scope == given.checkpointing.scope, way.text
        assert again.precision.autocast_dtype == given.precision.autocast_dtype == "bf16"


def test_the_bytes_are_the_same_when_read_back(
    folder: Path, tmp_path: Path, loaded: LoadedJob, found: FastestLayouts
) -> None:
    way = next(way for way in found.ways if "pipeline" not in str(way.changes))
    path = tmp_path / "accelerate.yaml"
    path.write_text(layout_config(loaded, way.changes, path))
    batch = with_overrides(loaded.job, way.changes).sizes["batch"]
    again = load_job(str(path), {"sizes.batch": batch, "sizes.sequence": 128}, Request(model=str(folder)))
    shown, _ = predict_distinct_ranks(again, CARD)
    assert shown.peak_reserved_bytes == way.prediction.peak_reserved_bytes


def test_accelerate_has_no_pipelines(loaded: LoadedJob) -> None:
    way = next(way for way in layouts(loaded.job) if way.stages == 2)
    with pytest.raises(CannotPredict, match=r"write a \.toml"):
        layout_config(loaded, way.changes, Path("a.yaml"))


def test_prices() -> None:
    prices = read_prices(["h100=2.5,a100-80gb=1.6"])
    assert [(price.gpu.id, price.per_hour) for price in prices] == [("h100-sxm", 2.5), ("a100-80gb", 1.6)]
    for words in ([], ["h100"], ["h100=free"], ["h100=-1"]):
        with pytest.raises(UsageError, match="--price"):
            read_prices(words)


@pytest.mark.exhaustive
def test_the_cheapest_comes_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["advise", str(folder), "--batch", "1", "--seq", "128", "--cheapest", "--price", "t4=0.5,h100=3", "--json"]
    assert main(words) == 0
    ways = json.loads(capsys.readouterr().out)["ways"]
    prices = [way["per_thousand_samples"] for way in ways]
    assert {way["gpu"] for way in ways} == {"t4", "h100-sxm"} and prices == sorted(prices)
    first = ways[0]
    assert first["per_thousand_samples"] == pytest.approx(1000 * first["per_hour"] / 3600 / first["samples_per_second"])


def test_fastest_needs_a_number_of_cards(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(folder), "--gpu", "h100", "--fastest"]) == 2
    assert "--fastest needs --gpus N" in capsys.readouterr().err
