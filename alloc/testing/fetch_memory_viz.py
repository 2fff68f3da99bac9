"""PyTorch's torch/cuda/_memory_viz.py, out of the wheel that pip would install.

The wheel is some hundred megabytes, and the file 25 KB: where the server sends
parts of files, only the wheel's directory and that member are read.
"""
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request
import zipfile

REQUIREMENT = "torch==2.15.0"
MEMBER = "torch/cuda/_memory_viz.py"
READ_BYTES = 1 << 18
TIMEOUT_SECONDS = 60


class RemoteFile(io.RawIOBase):
    """A file behind a URL, read in parts."""

    def __init__(self, url):
        self._url = url
        self._position = 0
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as head:
            if head.headers.get("Accept-Ranges") != "bytes":
                raise OSError("the server sends no parts of files")
            self._size = int(head.headers["Content-Length"])

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self._position

    def seek(self, offset, whence=os.SEEK_SET):
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position,
                os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer):
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        request = urllib.request.Request(
            self._url,
            headers={"Range": f"bytes={self._position}-{end - 1}"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as part:
            if part.status != 206:
                raise OSError("the server did not send a part")
            data = part.read()
        buffer[:len(data)] = data
        self._position += len(data)
        return len(data)


def wheel_url():
    with tempfile.TemporaryDirectory() as nowhere:
        report = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet",
             "--ignore-installed", "--no-deps", "--only-binary", ":all:",
             "--target", nowhere, "--report", "-", REQUIREMENT],
            check=True, capture_output=True, text=True).stdout
    return json.loads(report)["install"][0]["download_info"]["url"]


def fetch(folder):
    """The path of the file in the folder, fetched unless it is there. Raises
    OSError or subprocess.CalledProcessError where that cannot be done."""
    path = pathlib.Path(folder) / "_memory_viz.py"
    if not path.exists():
        with zipfile.ZipFile(io.BufferedReader(RemoteFile(wheel_url()),
                                               READ_BYTES)) as wheel:
            data = wheel.read(MEMBER)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(data)
        partial.rename(path)
    return path
