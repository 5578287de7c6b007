"""While models are built and run that a config describes: no file is written, no process started, nothing fetched, no
pickle opened, and no Python code run but that of installed libraries.

The fields of a job and the keys of a config are checked before; this holds whatever a library makes of them. Python
tells an audit hook of each of these things before it happens, and the hook may refuse.
"""

from __future__ import annotations

import contextlib
import functools
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextvars import ContextVar, Token
from types import FrameType
from typing import Any

from vramcast.base.access import root_of_files
from vramcast.base.errors import UsageError

_WRITES = frozenset((
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "os.setxattr", "os.removexattr", "shutil.copyfile", "shutil.copytree", "shutil.move", "shutil.rmtree",
    "shutil.make_archive", "shutil.unpack_archive", "shutil.chown", "tempfile.mkstemp", "tempfile.mkdtemp",
    "sqlite3.connect",
))  # fmt: skip
_PROCESSES = frozenset((
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.startfile",
    "pty.spawn", "os.kill", "os.killpg",
))  # fmt: skip
_NETWORK = frozenset((
    "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr",
    "socket.sendto", "socket.sendmsg", "urllib.Request", "http.client.connect", "ftplib.connect", "webbrowser.open",
))  # fmt: skip
_CODE = frozenset(("pickle.find_class", "marshal.loads", "marshal.load", "code.__new__"))
_TERMINAL = frozenset(("builtins.input", "builtins.breakpoint"))
_WHAT = {
    **dict.fromkeys(_WRITES, "change files"),
    **dict.fromkeys(_PROCESSES, "start or end a process"),
    **dict.fromkeys(_NETWORK, "use the network"),
    **dict.fromkeys(_CODE, "open a pickle or load code"),
    **dict.fromkeys(_TERMINAL, "ask in the terminal"),
}
_WATCHED = frozenset((*_WHAT, "open", "exec", "import", "ctypes.dlopen"))
_WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_IMPORTING = "<frozen importlib._bootstrap>"
_LIBRARIES = ("/usr/", "/lib/", "/lib32/", "/lib64/", "/opt/")
"""Where the system keeps compiled libraries."""
_FACTS = ("/proc/", "/sys/", "/usr/", "/dev/urandom", "/dev/random", "/etc/os-release", "/etc/mime.types")
"""What libraries look up about the machine."""


class Refused(UsageError):
    """Something that data may not do was tried."""


@functools.cache
def _folder(path: str) -> str:
    return os.path.join(os.path.realpath(path), "")


def _own_folders() -> tuple[str, ...]:
    scheme = sysconfig.get_paths()
    named = [sys.prefix, sys.base_prefix, sys.exec_prefix, *site.getsitepackages(), site.getusersitepackages()]
    named += [scheme["stdlib"], scheme["platstdlib"], os.path.dirname(os.path.dirname(os.path.dirname(__file__)))]
    return tuple({_folder(path) for path in [*named, *(entry for entry in sys.path if entry)] if path})


_FOLDERS = _own_folders()
"""Folders of Python, of its libraries, and of the user's search path, as they were before a job could add to it."""


class _Seal:
    """What holds inside one `with sealed()`."""

    def __init__(self, owner: FrameType) -> None:
        self.owner = owner
        root = root_of_files()
        self.root = None if root is None else _folder(str(root))
        packages = [getattr(module, "__path__", None) for name, module in list(sys.modules.items()) if "." not in name]
        self.folders = (*_FOLDERS, *{_folder(str(path)) for paths in packages for path in _listed(paths)})

    def refuse(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        """What is refused, in words; None: it may happen."""
        if event == "open":
            return self._open(*arguments[:3])
        if event == "exec":
            return self._run(getattr(arguments[0], "co_filename", ""))
        if event in ("import", "ctypes.dlopen"):
            name = arguments[1] if event == "import" else arguments[0]
            is_file = isinstance(name, str) and os.sep in name and not os.path.realpath(name).startswith(_LIBRARIES)
            return self._run(name) if is_file else None
        return None if self._inside_import() else _with(_WHAT[event], arguments)

    def _open(self, path: Any, mode: Any, flags: Any) -> str | None:
        if isinstance(path, int):
            return None
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & _WRITING_FLAGS
        name = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else str(path)
        if name == os.devnull or self._inside_import():
            return None
        if writes:
            return _with("write a file", (name,))
        if self.root is not None and not self._may_read(name):
            return _with("read a file outside the root", (name,))
        return None

    def _may_read(self, name: str) -> bool:
        path = os.path.realpath(name)
        return path.startswith((*self.folders, *_FACTS, self.root or ""))

    def _run(self, file: str) -> str | None:
        if file.startswith("<") or os.path.realpath(file).startswith(self.folders):
            return None
        return _with("run code", (file,))

    def _inside_import(self) -> bool:
        """A library that is being imported may set itself up: compiled modules, folders of its own."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self.owner:
            if frame.f_code.co_filename == _IMPORTING:
                return True
            frame = frame.f_back
        return False


def _listed(paths: Any) -> list[Any]:
    try:
        return list(paths or ())
    except Exception:  # a module may stand in for one that is not there, and raise whatever it likes
        return []


def _with(what: str, arguments: tuple[Any, ...]) -> str:
    name = next((str(argument) for argument in arguments if isinstance(argument, (str, bytes, os.PathLike))), "")
    return f"{what} ({name[:200]})" if name else what


_SEAL: ContextVar[_Seal | None] = ContextVar("seal", default=None)
_installed = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _WATCHED:
        return
    seal = _SEAL.get()
    if seal is None:
        return
    token = _SEAL.set(None)  # what is looked up to decide is not asked about again
    try:
        refused = seal.refuse(event, arguments)
    finally:
        _SEAL.reset(token)
    if refused is not None:
        raise Refused(f"what is described here would {refused}; a config is data, and may not")


@contextlib.contextmanager
def unsealed() -> Iterator[None]:
    """Around what vramcast itself does, whatever a config says: asking the driver for the cards here."""
    token = _SEAL.set(None)
    try:
        yield
    finally:
        _SEAL.reset(token)


class sealed:
    """`with sealed():` around what handles nothing but data and installed libraries. Of this thread only."""

    def __init__(self, *, on: bool = True) -> None:
        self._on = on
        self._token: Token[_Seal | None] | None = None

    def __enter__(self) -> None:
        global _installed
        if not self._on or _SEAL.get() is not None:
            return
        if not _installed:
            sys.addaudithook(_hook)
            _installed = True
        self._token = _SEAL.set(_Seal(sys._getframe(1)))

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _SEAL.reset(self._token)
            self._token = None
