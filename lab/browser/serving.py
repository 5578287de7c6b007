"""`vramcast serve` in a process of its own, and a Chromium to open it with."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EXAMPLE = "#job=example%3Atransformer-1b&gpu=rtx-4090&batch=4&sequence=1024"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def served(language: str = "en") -> Iterator[tuple[str, int]]:
    """Its address and process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/"
    with tempfile.TemporaryDirectory() as root:
        words = ["-m", "vramcast.cli.main", "serve", "--root", root, "--port", str(port), "--lang", language]
        process = subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL)
        try:
            _wait_for(address)
            yield address, process.pid
        finally:
            process.terminate()
            process.wait()


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = next(found for name in _NAMES if (found := shutil.which(name)))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def cpu_seconds(process: int) -> float:
    """What a process has used so far, without its children."""
    with open(f"/proc/{process}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait_for(address: str) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise TimeoutError(address)
