"""Python's way: the calls of `os` behave as on a disk, for this thread, for a while, and nothing gets around them."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.overlay.tree_of_files import fingerprint, make_old
from vramcast import overlay

NAMES = ("a", "b", "c/d", "c/e", "c/f/g", "h")


def change(rng: random.Random) -> tuple[str, Callable[[], object]]:
    """One random operation on files of the working folder, which may well fail; and its description."""

    def name() -> str:
        parts = [rng.choice("abcdefgh") for _ in range(rng.choice((1, 1, 2, 2, 3)))]
        return "/".join(parts) if rng.random() < 0.9 else f"{parts[0]}/../{parts[-1]}"

    one, other, text = name(), name(), rng.choice(("x", "yy", "zzz"))
    target = rng.choice((text, os.path.basename(other), os.path.abspath(other)))

    def write(mode: str) -> None:
        with open(one, mode) as file:
            file.write(text)

    operations: dict[str, Callable[[], object]] = {
        "write": lambda: write("w"),
        "append": lambda: write("a"),
        "write new": lambda: write("x"),
        "write into": lambda: write("r+"),
        "mkdir": lambda: os.mkdir(one),
        "makedirs": lambda: os.makedirs(one),
        "rmdir": lambda: os.rmdir(one),
        "remove": lambda: os.remove(one),
        "rename": lambda: os.rename(one, other),
        "replace": lambda: os.replace(one, other),
        "link": lambda: os.link(one, other),
        "symlink": lambda: os.symlink(target, one),
        "rmtree": lambda: shutil.rmtree(one, ignore_errors=True),
        "copytree": lambda: shutil.copytree(one, other),
        "move": lambda: shutil.move(one, other),
        "truncate": lambda: os.truncate(one, 1),
        "touch": lambda: Path(one).touch(),
    }
    kind = rng.choice(list(operations))
    return f"{kind} {one} {other} {target}", operations[kind]


def seen() -> dict[str, str]:
    found = {}
    for parent, folders, files in os.walk("."):
        for entry in [*folders, *files]:
            path = os.path.join(parent, entry)
            if os.path.islink(path):
                found[path] = f"-> {os.readlink(path)}"
            elif os.path.isfile(path):
                with open(path) as file:
                    found[path] = file.read()
            else:
                found[path] = "folder"
            assert os.path.lexists(path) and entry in os.listdir(parent)
    return found


def outcome(operation: Callable[[], object]) -> str:
    try:
        operation()
    except (FileNotFoundError, NotADirectoryError):
        return "not there"  # of two paths that are both wrong, the kernel looks at another first
    except (OSError, shutil.Error) as error:
        return type(error).__name__
    return "done"


def history(seed: int) -> Iterator[tuple[str, str, dict[str, str]]]:
    rng = random.Random(seed)
    for _ in range(40):
        said, operation = change(rng)
        yield said, outcome(operation), seen()


@pytest.mark.parametrize("seed", range(12))
def test_the_same_happens_as_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The same random operations on a tree on the disk, and again on one like it behind the overlay."""
    place = tmp_path / "tree"
    make_old(place, NAMES)
    (place / "g").symlink_to("c")
    shutil.copytree(place, tmp_path / "like it", symlinks=True)
    monkeypatch.chdir(place)
    on_disk = list(history(seed))
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(place)
    (tmp_path / "like it").rename(place)
    before = fingerprint(place)
    monkeypatch.chdir(place)
    with overlay.protected():
        for expected, found in zip(on_disk, history(seed), strict=True):
            assert found == expected
    assert fingerprint(place) == before


def test_everything_is_put_back(tmp_path: Path) -> None:
    names = ("open", "stat", "rename", "remove", "listdir", "getcwd")
    before = [getattr(os, name) for name in names], open, tempfile.gettempdir(), dict(os.environ), os.getcwd()
    held = []
    with overlay.protected():
        folder = tempfile.gettempdir()
        held.append(open)
        (tmp_path / "inside").write_text("x")
        assert (tmp_path / "inside").exists()
    assert ([getattr(os, name) for name in names], open, tempfile.gettempdir(), dict(os.environ), os.getcwd()) == before
    assert not (tmp_path / "inside").exists() and not os.path.exists(os.path.dirname(folder))
    with held[0](tmp_path / "after", "w") as file:  # a module that was imported meanwhile may have kept it
        file.write("real")
    assert (tmp_path / "after").read_text() == "real"


def test_other_threads_of_the_user_write_for_real(tmp_path: Path) -> None:
    begin, end = threading.Event(), threading.Event()

    def log() -> None:
        begin.wait()
        (tmp_path / "log").write_text("real")
        end.set()

    thread = threading.Thread(target=log)
    thread.start()
    with overlay.protected():
        begin.set()
        end.wait()
        inside = threading.Thread(target=lambda: (tmp_path / "of the code").write_text("x"))
        inside.start()
        inside.join()
        assert (tmp_path / "of the code").exists()
    thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_what_slips_through_is_refused(tmp_path: Path) -> None:
    from vramcast.overlay.tree import real

    precious = tmp_path / "precious"
    precious.write_text("years of work")
    said: list[str] = []
    with overlay.protected(lambda topic, text: said.append(text)):
        for operation in (
            lambda: real.open(str(precious), os.O_WRONLY | os.O_TRUNC),
            lambda: real.unlink(str(precious)),
            lambda: real.rename(str(precious), str(precious) + "2"),
            lambda: os.system(f"rm {precious}"),
        ):
            with pytest.raises(PermissionError, match="--write-through lets it"):
                operation()
        assert precious.read_text() == "years of work"
    assert precious.read_text() == "years of work"
    assert len(said) == 4 and all(line.startswith("refused: ") for line in said)


def test_programs_that_only_read_may_run() -> None:
    import subprocess

    with overlay.protected():
        assert subprocess.run(["uname"], capture_output=True, check=True).stdout
        with pytest.raises(PermissionError, match="cannot be kept off the disk"):
            subprocess.run(["touch", "x"], check=True)
        with pytest.raises(PermissionError, match="cannot be kept off the disk"):
            subprocess.run("ls > x", shell=True, check=True)
