"""The reader that CONTRIBUTING.md shows does what it says."""

from __future__ import annotations

import re
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramcast.errors import CannotPredict, UsageError
from vramcast.jobs import readers
from vramcast.jobs.load import load_job

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
FOLDERS = Path(__file__).parent / "folders"


@pytest.fixture
def toy_reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    shown = re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert shown is not None
    name = "vramcast.jobs.readers.toy"
    module = types.ModuleType(name)
    exec(compile(textwrap.dedent(shown[1]), str(PAGE), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(readers, "READERS", ("toy", *readers.READERS))
    yield


def _config(folder: Path, **keys: object) -> str:
    said = {"network": FOLDERS / "bert-base", "lr": 1e-4, **keys}
    text = "".join(f"  {key}: {value}\n" for key, value in said.items())
    (folder / "toy.yaml").write_text(f"toy:\n{text}")
    return str(folder / "toy.yaml")


@pytest.mark.usefixtures("toy_reader")
class TestToyReader:
    def test_a_config_becomes_a_job(self, tmp_path: Path) -> None:
        loaded = load_job(_config(tmp_path, batch_size=4, colour="red"))
        assert loaded.recognised_as.endswith("toy config")
        assert loaded.job.sizes["batch"] == 4
        assert [note.text for note in loaded.notes if note.topic == "unused keys"] == ["toy.colour"]

    def test_a_wrong_value_is_named_with_its_line(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"toy\.yaml:4: toy\.batch_size: a whole number is needed"):
            load_job(_config(tmp_path, batch_size="many"))

    def test_what_no_job_can_say_is_not_answered(self, tmp_path: Path) -> None:
        with pytest.raises(CannotPredict, match="distillation is not modelled"):
            load_job(_config(tmp_path, teacher="true"))
