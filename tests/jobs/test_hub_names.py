"""Names of the Hugging Face Hub: found in its local cache, or one sentence that says how to get the config."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from vramcast.errors import UsageError
from vramcast.jobs.hub_cache import cache_folder, cached_folder, is_hub_id
from vramcast.jobs.load import load_job
from vramcast.jobs.readers import Request

TINY = Path(__file__).parent / "configs" / "llama-tiny"
COMMITS = ("a" * 40, "b" * 40)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub" / "models--someone--tiny-llama"


def put(cache: Path, commit: str) -> Path:
    folder = cache / "snapshots" / commit
    shutil.copytree(TINY, folder)
    (cache / "refs").mkdir(exist_ok=True)
    (cache / "refs" / "main").write_text(commit)
    return folder


def test_a_name_in_the_cache(cache: Path) -> None:
    put(cache, COMMITS[1])
    folder = put(cache, COMMITS[0])
    assert cached_folder("someone/tiny-llama") == folder, "the snapshot of main"
    job = load_job("someone/tiny-llama").job
    assert (job.name, job.components["model"].transformers) == ("someone/tiny-llama", str(folder))


def test_a_name_in_a_config(cache: Path, tmp_path: Path) -> None:
    folder = put(cache, COMMITS[0])
    config = tmp_path / "args.yaml"
    config.write_text("model_name_or_path: someone/tiny-llama\nper_device_train_batch_size: 2\n")
    assert load_job(str(config)).job.components["model"].transformers == str(folder)
    assert load_job(str(config), request=Request(model="someone/tiny-llama")).job.sizes["batch"] == 2


@pytest.mark.parametrize("make", [False, True])
def test_a_name_that_is_not_in_the_cache(cache: Path, make: bool) -> None:
    if make:  # weights alone say nothing
        put(cache, COMMITS[0])
        (cache / "snapshots" / COMMITS[0] / "config.json").unlink()
    with pytest.raises(UsageError, match=r"not in the .* cache.*`hf download someone/tiny-llama config.json`"):
        load_job("someone/tiny-llama")


def test_the_cache_is_where_huggingface_hub_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_folder() == Path("~/.cache/huggingface/hub").expanduser()
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/h")
    assert cache_folder() == Path("/h/hub")


@pytest.mark.parametrize("name", ["a/b.yaml", "../b", "a/b/c", "plain", "a/..", "https://x/y", "a/b.json"])
def test_what_is_no_name_of_the_hub(name: str) -> None:
    assert not is_hub_id(name)
