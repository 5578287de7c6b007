"""Landlock, where the kernel has it: this process and its children may write below a few folders only. It is what
refuses compiled code and other programs, which Python's way cannot redirect. It needs no rights and is for good."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_SET_NO_NEW_PRIVS = 38
_ASK_VERSION, _PATH_BENEATH = 1, 1

_WRITE_FILE, _REMOVE, _MAKE, _REFER, _TRUNCATE = 1 << 1, 3 << 4, 0x7F << 6, 1 << 13, 1 << 14
_SINCE_VERSION = {2: _REFER, 3: _TRUNCATE}


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def restrict_writes(folders: Sequence[str]) -> bool:
    """Allow writes only below `folders` from now on; false where the kernel cannot."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    if version < min(_SINCE_VERSION):  # the first could not rename between folders
        return False
    handled = _WRITE_FILE | _REMOVE | _MAKE
    for since, right in _SINCE_VERSION.items():
        handled |= right if version >= since else 0
    rights = ctypes.c_uint64(handled)
    rules = libc.syscall(_CREATE_RULESET, ctypes.byref(rights), ctypes.c_size_t(8), ctypes.c_uint32(0))
    if rules < 0:
        return False
    try:
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                _allow(libc, rules, handled, folder)
        if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0)) == 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, rights: int, folder: str) -> None:
    number = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(rights, number)
        libc.syscall(
            _ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0)
        )
    finally:
        os.close(number)
