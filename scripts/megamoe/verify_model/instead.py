"""What lies in the place of a model file that is none: a pointer, an error page, another format."""

from __future__ import annotations

FIRST = 256  # bytes that tell it

_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer: the file was never fetched (`git lfs pull`)"),
    (b"/annex/objects/", "a git-annex pointer: the file was never fetched (`git annex get .`)"),
    (b"../.git/annex/", "a git-annex pointer: the file was never fetched (`git annex get .`)"),
    (b".git/annex/", "a git-annex pointer: the file was never fetched (`git annex get .`)"),
    (b"<!doctype html", "an HTML page: the download was answered by a web site (a login, a proxy)"),
    (b"<html", "an HTML page: the download was answered by a web site (a login, a proxy)"),
    (b"<?xml", "an XML document: the object store answered with an error"),
    (b"<error", "an XML document: the object store answered with an error"),
    (b"gguf", "a GGUF file: another format, which these engines do not load"),
    (b"pk\x03\x04", "a zip archive (PyTorch's .bin is one)"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data"),
)


def instead(first: bytes) -> str:
    """What a file is that starts so; "" when that is not known."""
    start = first.lstrip().lower()
    found = next((what for magic, what in _STARTS if start.startswith(magic)), "")
    if not found and start.startswith(b'{"error"'):
        found = "an error in JSON: " + first.decode("utf-8", "replace").strip()[:120]
    return found
