"""Files as the program sees them in Python's way: its own, in a throw-away folder, over those of the disk.

A path of the program, with all links followed, is a `place`. What was written there lies in the folder under the same
path. What was deleted, and what was renamed without being changed, stands in a journal: place → where its content lies
on the disk, or None. The journal is a file, so that forked processes agree.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from vramcast.overlay.writes import Sizes, Write, Writes, is_noise

_MOST_LINKS = 40
_NOT_FILES = ("/proc/", "/sys/", "/dev/")
_SHARED_MEMORY = "/dev/shm/"
_COPIED_AT_ONCE = 1 << 24

_NAMES = (
    "open", "close", "read", "write", "stat", "lstat", "readlink", "listdir", "scandir", "mkdir", "rmdir", "unlink",
    "rename", "link", "symlink", "chmod", "utime", "truncate", "ftruncate", "getcwd", "chdir", "access", "fstat",
)  # fmt: skip
real: Any = SimpleNamespace(**{name: getattr(os, name) for name in _NAMES})
"""The functions of `os` as they were before any of them was replaced."""


def failure(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), path)


class Tree:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._upper = os.path.join(folder, "files")
        os.makedirs(self._upper, exist_ok=True)
        self._journal = real.open(os.path.join(folder, "journal"), os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._read_bytes = 0
        self._below: dict[str, str | None] = {}
        self._plain: set[str] = set()
        self._cwd: str | None = None
        self.lock = threading.RLock()

    # -- places ---------------------------------------------------------------------------------------------

    def cwd(self) -> str:
        return str(real.getcwd()) if self._cwd is None else self._cwd

    def chdir(self, path: str) -> None:
        place = self.place(path)
        where = place if self.passes(place) else self.where(place)
        real.chdir(where)
        self._cwd = None if where == place else place

    def passes(self, place: str) -> bool:
        """Whether a path is not redirected: devices, the kernel's files, and the throw-away folder itself."""
        if place.startswith(_NOT_FILES):
            return not place.startswith(_SHARED_MEMORY)
        return place == self.folder or place.startswith(self.folder + "/")

    def place(self, path: str, *, follow: bool = True) -> str:
        """The absolute path with links followed; with `follow` the last one too."""
        self._catch_up()
        todo = [*reversed(path.split("/"))]
        here = "/"
        if not path.startswith("/"):
            todo += reversed(self.cwd().split("/"))
        links = 0
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                if not self.passes(here) and not _is_folder(where := self.where(here)):
                    raise failure(errno.ENOTDIR if _exists(where) else errno.ENOENT, path)
                here = os.path.dirname(here)
                continue
            place = f"{here}/{name}" if here != "/" else f"/{name}"
            if place in self._plain or (not follow and not any(todo)):
                here = place
                continue
            target = None if self.passes(place) else self._link(place)
            if target is None:
                here = place
                continue
            links += 1
            if links > _MOST_LINKS:
                raise failure(errno.ELOOP, path)
            if target.startswith("/"):
                here = "/"
            todo += reversed(target.split("/"))
        return here

    def _link(self, place: str) -> str | None:
        try:
            return real.readlink(self.where(place))  # type: ignore[no-any-return]
        except FileNotFoundError:
            return None
        except OSError:
            self._plain.add(place)
            return None

    def upper(self, place: str) -> str:
        return self._upper + place

    def lower(self, place: str) -> str | None:
        """Where the disk has what is seen at a place, if that is to be seen at all."""
        if not self._below:
            return place
        at = place
        while at != "/":
            if at in self._below:
                base = self._below[at]
                return None if base is None else base + place[len(at) :]
            at = os.path.dirname(at)
        return place

    def where(self, place: str) -> str:
        """The file that is seen at a place; where nothing is, a path that fails in the same way."""
        upper = self.upper(place)
        if _exists(upper):
            return upper
        lower = self.lower(place)
        if lower is not None and _exists(lower):
            return lower
        if (parent := os.path.dirname(place)) != "/" and not _is_folder(folder := self.where(parent)):
            return _join(folder, os.path.basename(place))
        return upper

    def exists(self, place: str) -> bool:
        return _exists(self.where(place))

    def is_folder(self, place: str) -> bool:
        return _is_folder(self.where(place))

    def names(self, place: str) -> list[str]:
        """What is in a folder."""
        upper, lower = self.upper(place), self.lower(place)
        seen: dict[str, None] = {}
        if _is_folder(upper):
            seen.update(dict.fromkeys(real.listdir(upper)))
        elif lower is None or not _exists(lower):
            raise failure(errno.ENOENT, place)
        if lower is not None and (_is_folder(lower) or not _exists(upper)) and _exists(lower):
            for name in real.listdir(lower):
                if self._below.get(_join(place, name), name) is not None:
                    seen[name] = None
        for other, below in self._below.items():
            if below is not None and os.path.dirname(other) == place and _exists(below):
                seen[os.path.basename(other)] = None
        return list(seen)

    # -- changes --------------------------------------------------------------------------------------------

    def to_write(self, place: str, *, keep: bool) -> str:
        """The path to open for writing; `keep`: what is there now stays there."""
        upper, lower = self.upper(place), self.lower(place)
        if _exists(upper):
            return upper
        if lower is not None and _exists(lower):
            info = real.lstat(lower)
            if stat.S_ISDIR(info.st_mode):
                self.make_folders(place)
                return upper
            if stat.S_ISLNK(info.st_mode):
                self.make_folders(os.path.dirname(place))
                real.symlink(real.readlink(lower), upper)
                return upper
            if not stat.S_ISREG(info.st_mode):
                return lower  # a pipe or a socket
            if not real.access(lower, os.W_OK):
                raise failure(errno.EACCES, place)
            self.make_folders(os.path.dirname(place))
            _copy(lower, upper, info, keep=keep)
            return upper
        parent = os.path.dirname(place)
        if not stat.S_ISDIR(real.stat(self.where(parent)).st_mode):
            raise failure(errno.ENOTDIR, place)
        if not real.access(self.where(parent), os.W_OK):
            raise failure(errno.EACCES, place)
        self.make_folders(parent)
        return upper

    def make_folders(self, place: str) -> None:
        """The folder and those it lies in, so that something can be put there."""
        upper = self.upper(place)
        if place == "/" or _exists(upper):
            return
        self.make_folders(os.path.dirname(place))
        with contextlib.suppress(FileExistsError):  # another process of the run needs it at the same moment
            real.mkdir(upper)
        lower = self.lower(place)
        if lower is not None and _exists(lower):
            real.chmod(upper, stat.S_IMODE(real.stat(lower).st_mode))

    def mkdir(self, place: str, mode: int) -> None:
        if self.exists(place):
            raise failure(errno.EEXIST, place)
        real.mkdir(self.to_write(place, keep=False), mode)

    def unlink(self, place: str) -> None:
        where = self.where(place)
        info = real.lstat(where)
        if stat.S_ISDIR(info.st_mode):
            raise failure(errno.EISDIR, place)
        if where == self.lower(place) and not real.access(os.path.dirname(where), os.W_OK):
            raise failure(errno.EACCES, place)
        self._take_away(place, real.unlink)

    def rmdir(self, place: str) -> None:
        if not stat.S_ISDIR(real.lstat(self.where(place)).st_mode):
            raise failure(errno.ENOTDIR, place)
        if self.names(place):
            raise failure(errno.ENOTEMPTY, place)
        self._take_away(place, real.rmdir)

    def _take_away(self, place: str, remove: Any) -> None:
        if _exists(self.upper(place)):
            remove(self.upper(place))
        lower = self.lower(place)
        if lower is not None and _exists(lower):
            self._note(place, None)

    def rename(self, source: str, target: str) -> None:
        info = real.lstat(self.where(source))
        if source == target:
            return
        is_folder = stat.S_ISDIR(info.st_mode)
        real.stat(self.where(os.path.dirname(target)))
        if is_folder and target.startswith(source + "/"):
            raise failure(errno.EINVAL, source)
        if self.exists(target):
            if not is_folder and stat.S_ISDIR(real.lstat(self.where(target)).st_mode):
                raise failure(errno.EISDIR, target)
            if is_folder:
                self.rmdir(target)
            else:
                self.unlink(target)
        upper, lower = self.upper(source), self.lower(source)
        moved = _exists(upper)
        new = self.to_write(target, keep=False)
        if lower is not None and not _exists(lower):
            lower = None
        for place, below in [item for item in self._below.items() if item[0].startswith(source + "/")]:
            self._note(target + place[len(source) :], below)
        if moved:
            real.rename(upper, new)
        if is_folder or not moved:
            self._note(target, lower)
        if self.lower(source) is not None:
            self._note(source, None)

    def link(self, source: str, target: str) -> None:
        if self.exists(target):
            raise failure(errno.EEXIST, target)
        real.link(self.to_write(source, keep=True), self.to_write(target, keep=False))

    def symlink(self, text: str, place: str) -> None:
        if self.exists(place):
            raise failure(errno.EEXIST, place)
        real.symlink(text, self.to_write(place, keep=False))
        self._note(place, self.lower(place))  # what was taken for plain may be a link now

    # -- the journal ----------------------------------------------------------------------------------------

    def _note(self, place: str, below: str | None) -> None:
        real.write(self._journal, json.dumps([place, below]).encode() + b"\n")
        self._catch_up()

    def _catch_up(self) -> None:
        size = real.fstat(self._journal).st_size
        if size == self._read_bytes:
            return
        lines = os.pread(self._journal, size - self._read_bytes, self._read_bytes).splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            place, below = json.loads(line)
            self._below[place] = below
            self._read_bytes += len(line)
        self._plain.clear()

    # -- the outcome ----------------------------------------------------------------------------------------

    def writes(self) -> Writes:
        self._catch_up()
        files, sizes = [], Sizes()
        for upper in _files(self._upper):
            place = upper[len(self._upper) :]
            if not is_noise(place):
                files.append(Write(place, sizes.of(upper, real.lstat(upper).st_size), _exists(place)))
        for place, below in self._below.items():
            if below is not None and below != place and not _exists(self.upper(place)):
                moved = _files(below) if _is_folder(below) else [below] if _exists(below) else []
                for path in moved:
                    files.append(Write(place + path[len(below) :], real.lstat(path).st_size, False))
        gone = [place for place in self._below if not self.exists(place) and _exists(place) and not is_noise(place)]
        return Writes(tuple(files), tuple(gone))

    def close(self) -> None:
        real.close(self._journal)


def _join(place: str, name: str) -> str:
    return f"{place}/{name}" if place != "/" else f"/{name}"


def _exists(path: str) -> bool:
    try:
        real.lstat(path)
    except OSError:
        return False
    return True


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(real.stat(path).st_mode)
    except OSError:
        return False


def _copy(source: str, target: str, info: os.stat_result, *, keep: bool) -> None:
    """A file that is about to be changed; without `keep` only its mode."""
    out = real.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, stat.S_IMODE(info.st_mode))
    try:
        if keep:
            file = real.open(source, os.O_RDONLY | os.O_CLOEXEC)
            try:
                while part := real.read(file, _COPIED_AT_ONCE):
                    while part:
                        part = part[real.write(out, part) :]
            finally:
                real.close(file)
    finally:
        real.close(out)
    real.chmod(target, stat.S_IMODE(info.st_mode))
    if keep:
        real.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


def _files(folder: str) -> Iterator[str]:
    for name in real.listdir(folder):
        path = os.path.join(folder, name)
        if stat.S_ISDIR(real.lstat(path).st_mode):
            yield from _files(path)
        else:
            yield path
