"""The kernel's way (Linux): the process moves into a mount namespace of its own, in which an overlay lies over every
file system. What it and its children write lands in a tmpfs that only this namespace knows, so nothing is left of it
when the last of them ends, however it ends.

Root needs only a mount namespace; anybody else takes a user namespace too. There the kernel refuses to overlay a folder
with mounts below it. Such a folder is built anew on the tmpfs, and the folders in it are overlaid one by one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramcast.overlay.putting_back import changes, put_back
from vramcast.overlay.writes import Sizes, Write, Writes, is_noise

_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_FLAGS = {"ro": _RDONLY, "nosuid": _NOSUID, "nodev": _NODEV, "noexec": _NOEXEC}
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522

_PLACES = ("/mnt", "/srv", "/media", "/opt", "/home", "/var/lib")
"""Where the tmpfs is mounted for a moment; any folder that exists and has no mounts below it does."""

_NOT_FILES = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "sysfs", "tracefs",
}  # fmt: skip
_SHARED_MEMORY = "/dev/shm"

_LONGEST_PATH = 4096
_MOST_ENTRIES = 1000
_MOST_COPIED_BYTES = 64 << 20
"""The most that may be copied of files beside mount points, in folders that are built anew."""


class Refused(Exception):
    """The kernel does not allow it here."""


@dataclass(frozen=True)
class _Mount:
    place: str
    kind: str
    flags: int


@dataclass
class _Layer:
    """An overlay: where it lies, its upper folder below the tmpfs, and the real folder under it."""

    place: str
    upper: str
    lower: int


@dataclass
class KernelOverlay:
    """What was mounted, as far as it is needed to say what was written."""

    layers: list[_Layer] = field(default_factory=list)
    built: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Files of folders that were built anew → (size, time of change)."""
    tree: int = -1
    """The tmpfs, as an open folder."""
    root: int = -1

    def disk(self) -> str:
        """Where this process still reaches the real files."""
        return f"/proc/self/fd/{self.root}"

    def covers_this_thread(self) -> bool:
        return True

    def covers_child_processes(self) -> bool:
        return True

    def writes(self) -> Writes:
        created: list[Write] = []
        gone: list[str] = []
        sizes = Sizes()
        for layer in self.layers:
            _walk(self.tree, layer, sizes, created, gone)
        self._walk_built(created, gone)
        return Writes(tuple(created), tuple(gone))

    def put_back(self) -> bool:
        created: list[Write] = []
        gone: list[str] = []
        self._walk_built(created, gone)
        if created or gone:
            return False
        mounts = {mount.place for mount in _mounts()}
        tops = (
            (f"/proc/self/fd/{self.tree}/{layer.upper}", f"/proc/self/fd/{layer.lower}", layer) for layer in self.layers
        )
        return put_back([one for upper, lower, layer in tops for one in changes(upper, lower, layer.place, mounts)])

    def _walk_built(self, created: list[Write], gone: list[str]) -> None:
        """Folders that were built anew: what is there now against what was put there."""
        covered = {layer.place for layer in self.layers} | {mount.place for mount in _mounts()}
        for folder in {os.path.dirname(path) for path in self.built}:
            for entry in _entries(folder):
                path = os.path.join(folder, entry.name)
                was_folder = path in self.built and entry.is_dir(follow_symlinks=False)
                if path in covered or entry.is_symlink() or was_folder:
                    continue
                inside = [path] if entry.is_file(follow_symlinks=False) else _files_below(path)
                for file in inside:
                    info = os.lstat(file)
                    if self.built.get(file) != (info.st_size, info.st_mtime_ns) and not is_noise(file):
                        created.append(Write(file, info.st_size, file in self.built))
        gone += [path for path in self.built if not os.path.lexists(path)]


def enter(*, as_root: bool = True) -> KernelOverlay:
    """Move this process, which must have one thread, behind an overlay. Refused leaves it as it was: everything is
    tried in a child first. `as_root`: if it may, without a user namespace."""
    if sys.platform != "linux" or os.uname().machine not in _PIVOT_ROOT:
        raise Refused("not on this system")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _try_out(_enter(as_root))
            code = 0
        except BaseException:
            if os.environ.get("VRAMCAST_OVERLAY_DEBUG"):
                sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise Refused("no mount namespaces with overlays for this user")
    return _enter(as_root)


def _try_out(overlay: KernelOverlay) -> None:
    """Make, delete and make again a folder and a file where the program is, if it may write there at all."""
    here = os.getcwd()
    if not os.access(here, os.W_OK):
        return
    place = os.path.join(here, f".vramcast-{os.getpid()}")
    for _ in range(2):
        os.mkdir(place)
        file = os.path.join(place, "file")
        for _ in range(2):
            with open(file, "xb") as out:
                out.write(b"x")
            os.replace(file, file + "2")
            os.unlink(file + "2")
        os.rmdir(place)
    os.mkdir(place)
    if os.listdir(place):
        raise Refused("folders that are made again are not empty")
    overlay.writes()


def _enter(as_root: bool) -> KernelOverlay:
    here = os.getcwd()
    real_root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    mounts = _mounts()
    likely = None
    if not as_root or not _unshare(_NEWNS):
        named = _folders_in([here, *sys.argv])
        for folder in named:
            _check_owners(folder)
        likely = sorted({*named, *_folders_in([os.path.expanduser("~"), *os.environ.values()])})
        _own_user_namespace()
    _mount("none", "/", None, _REC | _PRIVATE)
    place = _place(mounts)
    _mount("tmpfs", place, "tmpfs", 0, "mode=755")
    overlay = KernelOverlay(root=real_root)
    for name in ("upper", "work", "root"):
        os.mkdir(f"{place}/{name}")
    overlay.tree = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    _Builder(overlay, place, mounts, likely).build()
    os.chdir(f"{place}/root")
    _check(_libc().syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    _check(_libc().umount2(b".", _DETACH), "umount")
    os.chdir("/")
    os.chdir(here)
    if likely is not None:
        _drop_capabilities()
        _let_folders_be_renamed()
    return overlay


def _let_folders_be_renamed() -> None:
    """In a user namespace the kernel renames no folder that was there before (EXDEV); its files are renamed."""
    for name in ("rename", "replace"):
        setattr(os, name, _renaming(getattr(os, name)))


def _renaming(original: Callable[..., None]) -> Callable[..., None]:
    def rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        try:
            original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        except OSError as error:
            by_path = src_dir_fd is None and dst_dir_fd is None
            if error.errno != errno.EXDEV or not by_path or os.path.islink(src) or not os.path.isdir(src):
                raise
            source, target = os.fspath(src), os.fspath(dst)
            if os.path.isdir(target):
                os.rmdir(target)
            os.mkdir(target, stat.S_IMODE(os.stat(source).st_mode))
            for entry in os.listdir(source):
                rename(os.path.join(source, entry), os.path.join(target, entry))
            os.rmdir(source)

    return rename


class _Builder:
    def __init__(self, overlay: KernelOverlay, place: str, mounts: list[_Mount], likely: list[str] | None) -> None:
        self._overlay, self._place, self._mounts = overlay, place, mounts
        self._options = ["redirect_dir=on,metacopy=on,index=off", "index=off"] if likely is None else ["userxattr"]
        self._likely = likely or []
        self._copied = self._entries = 0

    def build(self) -> None:
        root = f"{self._place}/root"
        if not self._overlaid("/"):
            _mount("tmpfs", root, "tmpfs", 0, "mode=755")
            self._build_anew("/")
        for mount in self._mounts:
            self._cover(mount)

    def _target(self, place: str) -> str:
        return f"{self._place}/root{'' if place == '/' else place}"

    def _cover(self, mount: _Mount) -> None:
        target = self._target(mount.place)
        if mount.place == "/" or not os.path.lexists(target) or mount.place == self._place:
            return
        in_system = mount.place.startswith(("/dev/", "/proc/", "/sys/")) and mount.place != _SHARED_MEMORY
        if in_system:
            return  # bound together with what it lies in
        if mount.kind in _NOT_FILES:
            _mount(mount.place, target, None, _BIND | _REC)
        elif mount.flags & _RDONLY or not os.path.isdir(mount.place):
            _mount(mount.place, target, None, _BIND)
            self._read_only(mount, target)
        elif not self._overlaid(mount.place):
            _mount("tmpfs", target, "tmpfs", 0, "mode=755")
            self._build_anew(mount.place)

    def _read_only(self, mount: _Mount, target: str) -> None:
        _mount(mount.place, target, None, _REMOUNT | _BIND | _RDONLY | mount.flags)

    def _overlaid(self, place: str) -> bool:
        """Lay an overlay over a folder; false where the kernel refuses because of mounts below it."""
        number = len(self._overlay.layers)
        upper, work = (f"{self._place}/{kind}/{number}" for kind in ("upper", "work"))
        info = os.stat(place)
        for folder in (upper, work):
            os.makedirs(folder, exist_ok=True)
        os.chmod(upper, stat.S_IMODE(info.st_mode))
        if info.st_uid in (os.geteuid(), 0) and os.geteuid() == 0:
            os.chown(upper, info.st_uid, info.st_gid)
        for folder in self._likely:
            _make_like(place, upper, folder)
        lower = _escaped(place)
        target = self._target(place)
        for options in self._options:
            text = f"lowerdir={lower},upperdir={_escaped(upper)},workdir={_escaped(work)}"
            try:
                _mount("overlay", target, "overlay", 0, f"{text},{options}" if options else text)
                break
            except Refused as refused:
                error = refused
        else:
            if any(mount.place.startswith(place.rstrip("/") + "/") for mount in self._mounts):
                return False
            raise error
        self._overlay.layers.append(_Layer(place, f"upper/{number}", os.open(place, os.O_PATH | os.O_DIRECTORY)))
        return True

    def _build_anew(self, place: str) -> None:
        """A folder with mounts below it: the same entries on the tmpfs, its folders overlaid one by one."""
        for entry in _entries(place):
            self._entries += 1
            path = os.path.join(place, entry.name)
            target = self._target(path)
            info = entry.stat(follow_symlinks=False)
            if self._entries > _MOST_ENTRIES:
                raise Refused(f"too many files beside the mount points in {place}")
            if entry.is_symlink():
                os.symlink(os.readlink(path), target)
            elif entry.is_dir():
                os.mkdir(target)
                os.chmod(target, stat.S_IMODE(info.st_mode))
                self._overlay.built[path] = (-1, -1)
                if any(mount.place == path for mount in self._mounts) or os.path.realpath(path) == self._place:
                    continue  # covered, or mounted, later; the tmpfs itself need not be seen
                if not self._overlaid(path):
                    self._build_anew(path)
            elif entry.is_file() and any(mount.place == path for mount in self._mounts):
                with open(target, "xb"):
                    pass
            elif entry.is_file():
                self._copied += info.st_size
                if self._copied > _MOST_COPIED_BYTES:
                    raise Refused(f"large files beside the mount points in {place}")
                try:
                    shutil.copy2(path, target)
                except PermissionError:
                    continue  # nor could the program read it
                self._overlay.built[path] = (info.st_size, os.stat(target).st_mtime_ns)


def _folders_in(words: list[str]) -> list[str]:
    """Where the program may write. In a user namespace the kernel cannot copy a folder of another user into the
    overlay, which it does when something is written below; these are there from the beginning."""
    paths = [part for word in words for part in re.split("[=:,]", word) if "/" in part or os.path.exists(part)]
    folders = {os.path.realpath(path) for path in paths if len(path) < _LONGEST_PATH}
    return sorted({path if os.path.isdir(path) else os.path.dirname(path) for path in folders})


def _check_owners(folder: str) -> None:
    """Nor can it copy files of another user or group, when they are changed."""
    for entry, _ in zip(_entries(folder), range(_MOST_ENTRIES), strict=False):
        info = entry.stat(follow_symlinks=False)
        ours = (info.st_uid, info.st_gid) == (os.geteuid(), os.getegid())
        if not ours and entry.is_file(follow_symlinks=False) and os.access(entry.path, os.W_OK):
            raise Refused(f"{entry.path} belongs to another user or group")


def _make_like(place: str, upper: str, folder: str) -> None:
    below = os.path.relpath(folder, place)
    if below.startswith(".."):
        return
    path = place
    for name in below.split("/"):
        path = os.path.join(path, name)
        if not os.path.isdir(path) or os.path.ismount(path):
            return
        upper = os.path.join(upper, name)
        os.makedirs(upper, exist_ok=True)
        os.chmod(upper, stat.S_IMODE(os.stat(path).st_mode))


def _place(mounts: list[_Mount]) -> str:
    for place in _PLACES:
        below = any(mount.place == place or mount.place.startswith(place + "/") for mount in mounts)
        if not below and os.path.isdir(place) and not os.path.islink(place) and not os.getcwd().startswith(place):
            return place
    raise Refused("no folder to mount a tmpfs on")


def _mounts() -> list[_Mount]:
    """The visible mounts, each after the one it lies in."""
    lying_in: dict[str, list[tuple[str, _Mount]]] = {}
    numbers: set[str] = set()
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words, _, rest = line.partition(" - ")
            number, parent, _, _, place, options = words.split()[:6]
            flags = sum(_FLAGS.get(option, 0) for option in options.split(","))
            mount = _Mount(_unescaped(place), rest.split()[0], flags)
            lying_in.setdefault(parent, []).append((number, mount))
            numbers.add(number)
    seen: dict[str, _Mount] = {}

    def add(number: str, mount: _Mount) -> None:
        below = mount.place.rstrip("/") + "/"
        for hidden in [place for place in seen if place == mount.place or place.startswith(below)]:
            del seen[hidden]
        seen[mount.place] = mount
        for child in lying_in.get(number, ()):
            add(*child)

    for parent in set(lying_in) - numbers:
        for child in lying_in[parent]:
            add(*child)
    return list(seen.values())


def _unescaped(text: str) -> str:
    """Spaces and the like are octal in mountinfo."""
    for code in ("040", "011", "012"):
        text = text.replace("\\" + code, chr(int(code, 8)))
    return text.replace("\\134", "\\")


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _unshare(flags: int) -> bool:
    return bool(_libc().unshare(flags) == 0)


def _own_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    if not _unshare(_NEWUSER | _NEWNS):
        raise Refused("unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path("/proc/self", name).write_text(text)


def _drop_capabilities() -> None:
    """Drop what the process may do in the namespace beyond what its user may."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _libc().syscall(_CAPSET[os.uname().machine], header, (ctypes.c_uint32 * 6)())


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    result = _libc().mount(
        os.fsencode(source), os.fsencode(target), None if kind is None else kind.encode(), ctypes.c_ulong(flags),
        os.fsencode(options) if options else None,
    )  # fmt: skip
    _check(result, f"mount on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise Refused(f"{what}: {errno.errorcode.get(number, number)}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        return


def _files_below(folder: str) -> Iterator[str]:
    for parent, _, files in os.walk(folder):
        for name in files:
            yield os.path.join(parent, name)


def _walk(tree: int, layer: _Layer, sizes: Sizes, created: list[Write], gone: list[str]) -> None:
    """Everything in the upper folder: files that were made or changed, and whiteouts of those that were deleted."""
    top = f"/proc/self/fd/{tree}/{layer.upper}"
    for parent, folders, files in os.walk(top):
        below = os.path.relpath(parent, top)
        lower_parent = os.path.normpath(f"/proc/self/fd/{layer.lower}/{below}")
        if _is_opaque(parent):
            gone += [
                os.path.normpath(os.path.join(layer.place, below, name))
                for name in _names(lower_parent)
                if name not in folders and name not in files
            ]
        for name in files:
            path = os.path.normpath(os.path.join(layer.place, below, name))
            try:
                info = os.lstat(os.path.join(parent, name))
            except OSError:
                continue
            if is_noise(path):
                continue
            if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
                gone.append(path)
            elif stat.S_ISREG(info.st_mode):
                size_bytes = sizes.of(os.path.join(parent, name), info.st_size)
                created.append(Write(path, size_bytes, os.path.lexists(f"{lower_parent}/{name}")))
            elif stat.S_ISLNK(info.st_mode):
                created.append(Write(path, info.st_size, os.path.lexists(f"{lower_parent}/{name}")))


def _names(folder: str) -> list[str]:
    return [entry.name for entry in _entries(folder)]


def _is_opaque(folder: str) -> bool:
    for name in ("user.overlay.opaque", "trusted.overlay.opaque"):
        try:
            if os.getxattr(folder, name) == b"y":
                return True
        except OSError:
            continue
    return False
