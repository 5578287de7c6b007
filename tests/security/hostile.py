"""A folder full of things that must never be run, opened or read, and values that name them."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CODE = """
import pathlib
pathlib.Path({mark!r}).touch()
class Mine:
    def __init__(self, *args, **kwargs): pathlib.Path({mark!r}).touch()
def build(*args, **kwargs): pathlib.Path({mark!r}).touch()
"""

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "vocab_size": 64,
}


class _Touch:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


@dataclass(frozen=True)
class Hostile:
    root: Path
    """Below which a server may read."""
    outside: Path

    @property
    def mark(self) -> Path:
        """Is there when something was run."""
        return self.outside / "ran"

    def values(self) -> list[Any]:
        """What to put into a field."""
        code, pickled, other = self.root / "evil.py", self.root / "evil.bin", self.outside / "model"
        return [
            "ids.__repr__.__globals__.__builtins__.exec()",
            "ids.__class__",
            "os:system",
            "evil:build",
            f"{code}:build",
            "evil.Mine",
            str(code),
            str(pickled),
            "save_pretrained",
            "from_pretrained",
            "generate",
            "__init__",
            str(other),
            "../outside/model",
            "https://example.invalid/weights.pt",
            "hf-hub:someone/something",
            f"local-dir:{other}",
            "kernels-community/flash-attn",
            "someone/repository",
            "!!python/object/apply:os.system [touch ran]",
            "$(touch ran)",
            "`touch ran`",
            {"class_path": "evil.Mine", "init_args": {}},
            {"factory": "evil:build"},
            {"path": str(code)},
            {"AutoModelForCausalLM": "evil.Mine", "AutoConfig": "evil.Mine", "AutoModel": "evil.Mine"},
            ["evil", "Mine"],
            True,
        ]


def make(folder: Path) -> Hostile:
    """With a tiny model that is as it should be (root/model)."""
    hostile = Hostile(folder / "root", folder / "outside")
    for place in (hostile.root, hostile.outside):
        (place / "model").mkdir(parents=True)
        for name in ("evil.py", "model/evil.py", "model/modeling_evil.py"):
            (place / name).write_text(_CODE.format(mark=str(hostile.mark)))
        (place / "evil.bin").write_bytes(pickle.dumps(_Touch(hostile.mark)))
        (place / "model" / "pytorch_model.bin").write_bytes(pickle.dumps(_Touch(hostile.mark)))
        (place / "model" / "config.json").write_text(json.dumps(CONFIG))
    return hostile


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
