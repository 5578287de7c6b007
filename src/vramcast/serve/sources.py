"""Where the page's jobs come from: folders below the root, built-in examples, uploads.

Nothing of them is run: files are read by the readers of `jobs`, below the root or the folder of the upload only.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from vramcast.base.access import Limits, check_file
from vramcast.base.errors import UsageError
from vramcast.features.advise.config import options_text
from vramcast.jobs.load import LoadedJob, load_job, load_kind, with_overrides
from vramcast.serve.state import PageState
from vramcast.trace import StepTrace

MOST_UPLOAD_BYTES = 256 * 1024
MOST_TRACE_BYTES = 32 * 2**20
TRACE = "run.trace"
_MOST_UPLOADS = 50
_MOST_LISTED = 200
_MOST_VISITED = 5000
_DEEPEST = 4
_FOLDER_FILES = ("vramcast.yaml", "config.json", "model_index.json")
_SEPARATOR = re.escape(os.sep)
_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True, slots=True)
class Example:
    title: str
    kind: str
    width: int
    layers: int
    sizes: Mapping[str, int]


EXAMPLES = {
    "transformer-1b": Example("Transformer, 1 B weights", "transformer", 2048, 20, {"batch": 4, "sequence": 1024}),
    "transformer-small": Example("Transformer, 85 M weights", "transformer", 768, 12, {"batch": 16, "sequence": 512}),
    "unet": Example("U-Net on images", "unet", 64, 4, {"batch": 8, "height": 256, "width": 256}),
    "ddpm": Example("Diffusion U-Net", "ddpm", 128, 4, {"batch": 8, "height": 64, "width": 64}),
    "fno": Example("Fourier neural operator", "fno", 64, 4, {"batch": 8, "height": 256, "width": 256}),
}


class Sources:
    def __init__(self, root: Path, uploads: Path, *, allow_code: bool = False) -> None:
        """`uploads` is a folder of the server's own."""
        self.root, self.uploads, self.allow_code = root, uploads, allow_code

    def listed(self) -> list[str]:
        """Jobs that may lie below the root, shallow ones first."""
        found = sorted(self._candidates(), key=lambda name: (name.count("/"), name))
        return found[:_MOST_LISTED]

    def _candidates(self) -> Iterator[str]:
        visited = 0
        for folder, below, files in os.walk(self.root):
            here = Path(folder).relative_to(self.root)
            below[:] = sorted(name for name in below if not name.startswith((".", "__")) and name != "node_modules")
            if len(here.parts) >= _DEEPEST:
                below.clear()
            visited += len(files) + len(below)
            if visited > _MOST_VISITED:
                return
            if any(name in files for name in _FOLDER_FILES):
                yield here.as_posix()
                continue
            yield from (
                (here / name).as_posix() for name in files if name.endswith(_SUFFIXES) and not name.startswith(".")
            )

    def add_upload(self, name: str, text: str) -> str:
        """Keep a config that was sent; what to call it from now on."""
        suffix = Path(name).suffix.lower()
        if suffix not in _SUFFIXES:
            raise UsageError(f"{name}: send a .yaml, .json or .toml file")
        if len(text.encode()) > MOST_UPLOAD_BYTES:
            raise UsageError(f"{name}: at most {MOST_UPLOAD_BYTES // 1024} KiB can be sent")
        number = sha256(f"{suffix}\n{text}".encode()).hexdigest()[:16]
        folder = self._new_folder(number)
        if folder is not None:
            usual = Path(name).name if Path(name).name in _FOLDER_FILES else f"job{suffix}"
            (folder / usual).write_text(text, encoding="utf-8")
        return f"upload:{number}"

    def add_trace(self, content: bytes) -> str:
        """Keep a trace that was sent, if it is one."""
        number = sha256(content).hexdigest()[:16]
        folder = self._new_folder(number)
        if folder is not None:
            (folder / TRACE).write_bytes(content)
            try:
                StepTrace.load(folder / TRACE)
            except UsageError:
                (folder / TRACE).unlink()
                folder.rmdir()
                raise
        return f"upload:{number}"

    def _new_folder(self, number: str) -> Path | None:
        """None where the same was sent before."""
        folder = self.uploads / number
        if folder.is_dir():
            return None
        if len(list(self.uploads.iterdir())) >= _MOST_UPLOADS:
            raise UsageError("too many files were sent; start the server again")
        folder.mkdir()
        return folder

    def trace_file(self, state: PageState) -> Path | None:
        """The trace that was sent, where the job is one."""
        if not state.job.startswith("upload:"):
            return None
        path = self._upload(state) / TRACE
        return path if path.is_file() else None

    def _upload(self, state: PageState) -> Path:
        name = state.job.removeprefix("upload:")
        folder = self.uploads / name
        if not name.isalnum() or not folder.is_dir():
            raise UsageError("this upload is gone; send the file again")
        return folder

    def limits(self, state: PageState) -> Limits:
        """What may be read for it, so that an upload cannot name what somebody else has sent, and whether its code may
        run: that of an example is vramcast's own."""
        if state.job.startswith("upload:"):
            return Limits(self._upload(state), sent=True)
        return Limits(
            self.root, state.job.startswith("example:") or (self.allow_code and state.job.startswith("folder:"))
        )

    def as_sent(self, text: str) -> str:
        """A text that names files as whoever sent them knows them, not where they are kept."""
        return re.sub(rf"{re.escape(str(self.uploads))}{_SEPARATOR}[0-9a-f]+{_SEPARATOR}?", "", text)

    def load(self, state: PageState) -> LoadedJob:
        """The job with the settings put in. Call it with the limits in force."""
        loaded = self.load_plain(state)
        main = next(iter(loaded.job.components), "")
        changes = {
            key: value for key, value in state.overrides(main).items() if _says_more(loaded, key, value)
        }  # fmt: skip
        job = with_overrides(loaded.job, changes, loaded.where)
        return LoadedJob(
            job=job, recognised_as=loaded.recognised_as, notes=loaded.notes, where=loaded.where, overrides=changes,
            request=loaded.request,
        )  # fmt: skip

    def load_plain(self, state: PageState) -> LoadedJob:
        kind, _, name = state.job.partition(":")
        if kind == "example":
            example = EXAMPLES.get(name)
            if example is None:
                raise UsageError(f"there is no example {name!r}")
            return load_kind(example.kind, example.sizes, example.width, example.layers)
        if kind == "upload":
            return load_job(str(next(self._upload(state).iterdir())))
        if kind != "folder":
            raise UsageError(f"{state.job}: a job is folder:PATH, example:NAME or upload:NUMBER")
        path = self.root / name
        check_file(path)
        if not path.exists():
            raise UsageError(f"{name}: there is no such file or folder")
        return load_job(str(path))

    def command(self, state: PageState, loaded: LoadedJob) -> str:
        """What to type for the same."""
        words = ["vramcast", "predict"]
        kind, _, name = state.job.partition(":")
        if kind == "example":
            example = EXAMPLES[name]
            words += ["--arch", example.kind, "--hidden-dim", str(example.width), "--num-layers", str(example.layers)]
            said = {f"sizes.{size}": value for size, value in example.sizes.items()} | dict(loaded.overrides)
        else:
            words.append(name if kind == "folder" else next((self.uploads / name).iterdir()).name)
            said = dict(loaded.overrides)
        text = shlex.join([*words, "--gpu", state.gpu, *(["--limit", state.limit] if state.limit else [])])
        options = options_text(said)
        return f"{text} {options}" if options else text


def _says_more(loaded: LoadedJob, key: str, value: Any) -> bool:
    """Whether the setting differs from what the job has, so that a command does not repeat it."""
    if key.startswith("sizes."):
        return bool(loaded.job.effective_sizes.get(key.partition(".")[2]) != value)
    if key == "accumulation":
        return bool(loaded.job.accumulation != value)
    if key == "torch_compile":
        return bool(loaded.job.torch_compile != value)
    if key in ("gpus.count", "gpus.tensor", "gpus.pipeline"):
        return bool(getattr(loaded.job.gpus, key.partition(".")[2]) != value)
    return True
