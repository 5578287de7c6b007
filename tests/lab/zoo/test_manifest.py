"""The manifest names only what exists, and holds as many scripts and kinds as the zoo is meant to."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from lab.zoo.manifest import ManifestError, choose, load
from lab.zoo.recipes import recipes

SCRIPTS = load()


def test_it_is_broad() -> None:
    assert len(SCRIPTS) >= 60
    assert len({script.repository.name for script in SCRIPTS.values()}) >= 40
    kinds = {script.kind for script in SCRIPTS.values()}
    assert kinds >= {
        "language", "vision", "detection", "segmentation", "diffusion", "video", "audio", "speech", "GAN", "RL",
        "graph", "NeRF", "3-D", "ODE", "time series", "recommender", "RLHF",
    }  # fmt: skip
    styles = {script.style for script in SCRIPTS.values()}
    assert styles >= {"plain loop", "Trainer", "Lightning", "accelerate", "fabric", "ignite", "composer"}


def test_every_commit_is_exact() -> None:
    for script in SCRIPTS.values():
        assert re.fullmatch("[0-9a-f]{40}", script.repository.commit), script.name


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_its_recipes_take_its_parameters(script) -> None:  # type: ignore[no-untyped-def]
    known = recipes()
    for entry in script.data:
        parameters = {key: value for key, value in entry.items() if key not in ("recipe", "into")}
        inspect.signature(known[entry["recipe"]]).bind(Path("data"), **parameters)


def test_every_recipe_is_used() -> None:
    used = {entry["recipe"] for script in SCRIPTS.values() for entry in script.data}
    used.add("sounds")  # by another recipe
    assert set(recipes()) == used


def test_the_beginning_of_a_name_chooses_several() -> None:
    chosen = choose(SCRIPTS, ["torchdiffeq"])
    assert len(chosen) >= 3
    assert all(script.repository.name == "rtqichen/torchdiffeq" for script in chosen)
    with pytest.raises(ManifestError, match="no script of the zoo is named giraffe"):
        choose(SCRIPTS, ["giraffe"])


def test_a_mistake_in_the_manifest_is_named(tmp_path: Path) -> None:
    manifest = tmp_path / "zoo.toml"
    entry = '[[script]]\nname = "a"\nrepository = "some/one"\npath = "a.py"\nkind = "x"\nstyle = "y"\n'
    repositories = f'[repositories]\n"some/one" = "{"0" * 40}"\n'
    for wrong, message in (
        (repositories + entry + "colour = 1\n", "a: unknown field colour"),
        (repositories + entry + 'stand_ins = { giraffe = "none" }\n', "a: there is no stand-in for giraffe"),
        (repositories + entry + entry, "a stands twice"),
        ("[repositories]\n" + entry, "a: some/one has no commit"),
    ):
        manifest.write_text(wrong)
        with pytest.raises(ManifestError, match=message):
            load(manifest)
