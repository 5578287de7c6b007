"""Python's own calls on files, each with the path that `Tree` finds for it, and what slips through refused."""

from __future__ import annotations

import _io
import builtins
import contextlib
import errno
import functools
import importlib
import io
import os
import shutil
import stat
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vramcast.overlay.tree import Tree, failure, real

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TMPFILE = getattr(os, "O_TMPFILE", 0)

_PLACE_OF_OPENER = 7
"""Among the arguments of `open`, behind the file."""

_ABOUT_A_FILE = ("stat", "access", "statvfs", "pathconf", "getxattr", "listxattr")
"""They read; `follow_symlinks` says whether of a link itself."""
_CHANGE_A_FILE = ("chmod", "chown", "utime", "truncate", "setxattr", "removexattr", "lchown", "lchmod", "chflags")


class Escaped(PermissionError):
    """A write that was about to reach the real disk."""


class Calls:
    """Replaces functions of `os`, `io` and `builtins`; every other thread that runs already keeps the real ones."""

    def __init__(self, tree: Tree, refuse_programs: bool) -> None:
        self.tree = tree
        self._refuse_programs = refuse_programs
        self._others = weakref.WeakSet(threading.enumerate())
        self._others.discard(threading.current_thread())
        self._undo: list[tuple[Any, str, Any]] = []
        self._local = threading.local()
        self._on = True
        self.refused: list[str] = []

    # -- putting in place -----------------------------------------------------------------------------------

    def install(self) -> None:
        for name in _ABOUT_A_FILE:
            self._put_os(name, self._reading(name))
        self._put_os("lstat", lambda path, *, dir_fd=None: os.stat(path, dir_fd=dir_fd, follow_symlinks=False))
        for name in _CHANGE_A_FILE:
            self._put_os(name, self._changing(name))
        for name, function in (
            ("open", self._open), ("readlink", self._readlink), ("listdir", self._listdir), ("scandir", self._scandir),
            ("mkdir", self._mkdir), ("rmdir", self._rmdir), ("unlink", self._unlink), ("remove", self._unlink),
            ("rename", self._rename), ("replace", self._rename), ("link", self._link), ("symlink", self._symlink),
            ("chdir", self._chdir), ("getcwd", self._getcwd), ("mkfifo", self._mkfifo), ("mknod", self._mknod),
        ):  # fmt: skip
            self._put_os(name, function)
        self._put_os("getcwdb", lambda: os.fsencode(os.getcwd()))
        opened = self._opening(builtins.open)
        for module in (builtins, io, _io):
            self.put(module, "open", opened)
        file_type = self._file_type()
        for module in (io, _io):
            self.put(module, "FileIO", file_type)
            self.put(module, "open_code", self._open_code(_io.open_code))
        # By descriptors of folders it would be only slower here.
        self.put(shutil, "_use_fd_functions", False)
        self.put(shutil.rmtree, "avoids_symlink_attacks", False)
        self.put(sys, "dont_write_bytecode", True)
        place = os.path.join(self.tree.folder, "tmp")
        real.mkdir(place) if not os.path.isdir(place) else None
        self.put(tempfile, "tempdir", place)

    def put(self, owner: Any, name: str, value: Any) -> None:
        self._undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def remove(self) -> None:
        self._on = False
        while self._undo:
            owner, name, value = self._undo.pop()
            setattr(owner, name, value)

    def _put_os(self, name: str, function: Callable[..., Any]) -> None:
        """Replace the functions in `os` and in the module that it and importlib have them from."""
        original = getattr(os, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.applies():
                return original(*args, **kwargs)
            return function(*args, **kwargs)

        # os.supports_dir_fd and the like hold the functions themselves.
        for name_of_set in ("supports_dir_fd", "supports_fd", "supports_follow_symlinks", "supports_effective_ids"):
            functions: set[Any] = getattr(os, name_of_set, set())
            if original in functions:
                functions.add(call)
        self.put(os, name, call)
        native = importlib.import_module(os.name if os.name != "posix" else "posix")
        if hasattr(native, name):
            self.put(native, name, call)

    def applies(self) -> bool:
        """Not to threads of the user's, nor afterwards, when a module that was imported meanwhile still has us."""
        return self._on and threading.current_thread() not in self._others

    # -- paths ----------------------------------------------------------------------------------------------

    def _place(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> str:
        text = os.fsdecode(path)
        if "\0" in text:
            raise ValueError("embedded null byte")
        if not text:
            raise failure(errno.ENOENT, path)
        if dir_fd is not None and not text.startswith("/"):
            text = os.path.join(self._of_descriptor(dir_fd), text)
        return self.tree.place(text, follow=follow)

    def _of_descriptor(self, number: int) -> str:
        if sys.platform == "darwin":
            import fcntl

            path = os.fsdecode(fcntl.fcntl(number, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
        else:
            path = real.readlink(f"/proc/self/fd/{number}")
        return self.unmapped(path)

    def unmapped(self, path: str) -> str:
        """The program's name of a file in the throw-away folder."""
        top = self.tree.upper("")
        return path[len(top) :] or "/" if path == top or path.startswith(top + "/") else path

    def for_reading(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> str:
        place = self._place(path, dir_fd, follow=follow)
        return place if self.tree.passes(place) else self.tree.where(place)

    def for_writing(self, path: Any, dir_fd: int | None = None, *, follow: bool = True, keep: bool = True) -> str:
        with self.tree.lock:
            place = self._place(path, dir_fd, follow=follow)
            return place if self.tree.passes(place) else self.tree.to_write(place, keep=keep)

    # -- os -------------------------------------------------------------------------------------------------

    def _reading(self, name: str) -> Callable[..., Any]:
        original = getattr(os, name, None)

        def call(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            assert original is not None
            if isinstance(path, int):
                return original(path, *args, **kwargs)
            with _named(path):
                mapped = self.for_reading(path, dir_fd, follow=kwargs.get("follow_symlinks", True))
                return original(mapped, *args, **kwargs)

        return call

    def _changing(self, name: str) -> Callable[..., Any]:
        original = getattr(os, name, None)

        def call(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            assert original is not None
            if isinstance(path, int):
                return original(path, *args, **kwargs)
            follow = kwargs.get("follow_symlinks", not name.startswith("l"))
            with _named(path):
                where = self.for_reading(path, dir_fd, follow=follow)
                real.lstat(where)
                return original(self.for_writing(path, dir_fd, follow=follow), *args, **kwargs)

        return call

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        new = os.O_CREAT | os.O_EXCL
        follow = not flags & os.O_NOFOLLOW and flags & new != new
        with _named(path), self.tree.lock:
            place = self._place(path, dir_fd, follow=follow)
            if self.tree.passes(place):
                return real.open(place, flags, mode)  # type: ignore[no-any-return]
            writes = flags & _WRITING or (_TMPFILE and flags & _TMPFILE == _TMPFILE)
            if not writes:
                return real.open(self.tree.where(place), flags)  # type: ignore[no-any-return]
            if flags & new == new and self.tree.exists(place):
                raise failure(errno.EEXIST, path)
            if not flags & os.O_CREAT:
                real.stat(self.tree.where(place))
            mapped = self.tree.to_write(place, keep=not flags & os.O_TRUNC)
            return real.open(mapped, flags, mode)  # type: ignore[no-any-return]

    def _readlink(self, path: Any, *, dir_fd: int | None = None) -> Any:
        with _named(path):
            place = self._place(path, dir_fd, follow=False)
            if place.startswith("/proc/"):
                text = self.unmapped(real.readlink(place))
            else:
                text = real.readlink(place if self.tree.passes(place) else self.tree.where(place))
        return os.fsencode(text) if isinstance(path, bytes) else text

    def _listdir(self, path: Any = ".") -> Any:
        if isinstance(path, int):
            return self._listdir(self._of_descriptor(path))
        with _named(path):
            place = self._place("." if path is None else path)
            if self.tree.passes(place):
                return real.listdir(place)
            if not self.tree.is_folder(place):
                return real.listdir(self.tree.where(place))  # says what is wrong
            names = self.tree.names(place)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def _scandir(self, path: Any = ".") -> Any:
        if isinstance(path, int):
            return real.scandir(path)
        given = "." if path is None else os.fspath(path)
        with _named(path):
            place = self._place(given)
            if self.tree.passes(place):
                return real.scandir(given)
        return _Entries([_Entry(given, name) for name in self._listdir(given)])

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._changes(path, dir_fd) as (place, passes):
            real.mkdir(place, mode) if passes else self.tree.mkdir(place, mode)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._changes(path, dir_fd) as (place, passes):
            real.rmdir(place) if passes else self.tree.rmdir(place)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._changes(path, dir_fd) as (place, passes):
            real.unlink(place) if passes else self.tree.unlink(place)

    def _rename(self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        with self._changes(src, src_dir_fd) as (source, from_here):
            target = self._place(dst, dst_dir_fd, follow=False)
            to_here = self.tree.passes(target)
            if from_here and to_here:
                real.rename(source, target)
            elif from_here or to_here:  # between the throw-away folder's own places and the program's
                raise failure(errno.EXDEV, src)
            else:
                self.tree.rename(source, target)

    def _link(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:  # fmt: skip
        with self._changes(dst, dst_dir_fd) as (target, _):
            source = self._place(src, src_dir_fd, follow=False)  # on Linux a link to a link is made
            if self.tree.passes(source):
                raise failure(errno.EXDEV, src)
            real.lstat(self.tree.where(source))
            self.tree.link(source, target)

    def _symlink(self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        with self._changes(dst, dir_fd) as (place, passes):
            text = os.fsdecode(src)
            real.symlink(text, place) if passes else self.tree.symlink(text, place)

    def _chdir(self, path: Any) -> None:
        with _named(path):
            self.tree.chdir(self._of_descriptor(path) if isinstance(path, int) else os.fsdecode(path))

    def _getcwd(self) -> str:
        return self.tree.cwd()

    def _mkfifo(self, path: Any, mode: int = 0o666, *, dir_fd: int | None = None) -> None:
        self._mknod(path, mode | stat.S_IFIFO, dir_fd=dir_fd)

    def _mknod(self, path: Any, mode: int = 0o600, device: int = 0, *, dir_fd: int | None = None) -> None:
        with self._changes(path, dir_fd) as (place, _):
            if self.tree.exists(place):
                raise failure(errno.EEXIST, path)
            _real_mknod(self.tree.to_write(place, keep=False), mode, device)

    @contextlib.contextmanager
    def _changes(self, path: Any, dir_fd: int | None) -> Iterator[tuple[str, bool]]:
        with _named(path), self.tree.lock:
            place = self._place(path, dir_fd, follow=False)
            yield place, self.tree.passes(place)

    # -- io -------------------------------------------------------------------------------------------------

    def _opener(self, path: Any, flags: int) -> int:
        return self._open(path, flags, 0o666)

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def open(file: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.applies() or isinstance(file, int):
                return original(file, *args, **kwargs)
            if len(args) < _PLACE_OF_OPENER and kwargs.get("opener") is None:
                kwargs["opener"] = self._opener
            with self._let_through():
                return original(file, *args, **kwargs)

        return open

    def _open_code(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda path: original(self.for_reading(path) if self.applies() else path)

    def _file_type(self) -> Any:
        plain: Any = _io.FileIO

        class _Kind(type(plain)):  # type: ignore[misc]
            def __instancecheck__(cls, instance: object) -> bool:
                return isinstance(instance, plain)

        def start(this: Any, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> None:
            if self.applies() and not isinstance(file, int) and opener is None:
                opener = self._opener
            with self._let_through():
                plain.__init__(this, file, mode, closefd, opener)

        return _Kind("FileIO", (plain,), {"__init__": start, "__module__": "_io"})

    @contextlib.contextmanager
    def _let_through(self) -> Iterator[None]:
        """Python reports an opening by the program's path, although it is opened elsewhere."""
        self._local.depth = getattr(self._local, "depth", 0) + 1
        try:
            yield
        finally:
            self._local.depth -= 1

    # -- what slips through ---------------------------------------------------------------------------------

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        paths = _paths_written(event, args) if event in WATCHED_EVENTS else []
        if not paths or not self.applies():
            return
        if event == "open" and args[1] is not None and vars(self._local).get("depth"):
            return
        if paths == PROGRAM:
            self._check_program(event, args)
            return
        for path in paths:
            place = os.path.join(real.getcwd(), os.fsdecode(path))
            if event in _OF_LINKS:
                place = os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
            else:
                place = os.path.realpath(place)
            if not self.tree.passes(place):
                self._refuse(f"{place} would have been written on the real disk ({event})")

    def _check_program(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._refuse_programs:
            return
        words, in_shell = _words(event, args)
        if not _only_reads(words, in_shell):
            self._refuse(f"`{' '.join(words)[:80]}`: what another program writes cannot be kept off the disk here")

    def _refuse(self, what: str) -> None:
        message = f"{what}; --write-through lets it"
        self.refused.append(message)
        raise Escaped(errno.EACCES, message)


PROGRAM = ["a program"]

_READERS = {
    "cat", "c++", "cc", "df", "dpkg", "echo", "file", "free", "gcc", "getconf", "g++", "head", "hostname", "id",
    "ldconfig", "lsb_release", "lscpu", "ls", "lspci", "nproc", "numactl", "nvcc", "nvidia-smi", "objdump",
    "rocm-smi", "sysctl", "uname", "uptime", "wc", "where", "which", "whoami",
}  # fmt: skip
_GIT_READERS = {"branch", "cat-file", "config", "describe", "diff", "log", "ls-files", "rev-list", "rev-parse", "show"}
_COMPILER_READERS = {"--version", "-v", "-V", "-dumpversion", "-dumpfullversion", "-dumpmachine"}


def _only_reads(words: Sequence[str], in_shell: bool) -> bool:
    """Programs that scripts ask about the machine and their own version."""
    name = os.path.basename(words[0]) if words else ""
    if in_shell and any(character in " ".join(words) for character in "><|;&`$"):
        return False
    if name == "git":
        return next((word for word in words[1:] if not word.startswith("-")), "") in _GIT_READERS | {"status"}
    if name in ("gcc", "g++", "cc", "c++", "nvcc"):
        return bool(set(words[1:]) & _COMPILER_READERS)
    return name in _READERS


def _words(event: str, args: tuple[Any, ...]) -> tuple[list[str], bool]:
    """Of the command, and whether a shell reads them."""
    command = args[0] if event == "os.system" else args[1]
    if isinstance(command, (str, bytes, os.PathLike)):
        return os.fsdecode(command).split(), True
    parts = [os.fsdecode(word) for word in command]
    shell = [os.path.basename(parts[0]), *parts[1:2]] if parts else []
    if shell in (["sh", "-c"], ["bash", "-c"]):
        return " ".join(parts[2:]).split(), True
    return parts, False


def _paths_written(event: str, args: tuple[Any, ...]) -> list[Any]:
    if event == "open":
        path, mode, flags = args
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & _WRITING)
        return [path] if writes and isinstance(path, (str, bytes, os.PathLike)) else []
    if event in _BY_PATH:
        return [args[i] for i in _BY_PATH[event] if isinstance(args[i], (str, bytes, os.PathLike))]
    return PROGRAM if event in ("subprocess.Popen", "os.system", "os.posix_spawn") else []


_BY_PATH = {
    "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,), "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,),
    "os.utime": (0,), "os.setxattr": (0,), "os.removexattr": (0,), "os.rename": (0, 1), "os.link": (1,),
    "os.symlink": (1,),
}  # fmt: skip

_OF_LINKS = {"os.remove", "os.rmdir", "os.mkdir", "os.rename", "os.link", "os.symlink"}
"""They do not follow a link at the end of the path."""
WATCHED_EVENTS = {"open", "subprocess.Popen", "os.system", "os.posix_spawn", *_BY_PATH}

_real_mknod: Any = getattr(os, "mknod", None)


@contextlib.contextmanager
def _named(path: Any) -> Iterator[None]:
    """An error names the file as the program does."""
    try:
        yield
    except Escaped:
        raise
    except OSError as error:
        if error.filename is not None:
            error.filename = path
        raise


class _Entries:
    """What os.scandir gives."""

    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class _Entry:
    """Stands for an os.DirEntry."""

    __slots__ = ("name", "path")

    def __init__(self, folder: Any, name: Any) -> None:
        self.name = name
        self.path = os.path.join(folder, name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return os.lstat(self.path).st_ino

    def is_symlink(self) -> bool:
        return os.path.islink(self.path)

    def is_junction(self) -> bool:
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def _is(self, kind: Callable[[int], bool], follow_symlinks: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except FileNotFoundError:
            return False
