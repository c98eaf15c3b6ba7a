"""Log files as a stream of chunks of whole lines: plain, UTF-16, gzip, bzip2 or xz, in constant memory."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from megamoe_atom.problem import Exit, Problem

from megamoe.text_input import display_name, standard_input

CHUNK = 1 << 20
_HOLE = bytes(64)  # logrotate's copytruncate leaves gigabytes of NULs before the first line
LINE_MAX = 1 << 20  # a longer "line" is binary; it is cut, so that memory stays constant


def _open(path: str) -> IO[bytes]:
    """Opens one log.

    Raises:
        Problem: missing or unreadable (exit 3), not a regular file (exit 2).
    """
    name = display_name(path)
    if path == "-":
        return standard_input()
    if not path or "\0" in path:
        raise Problem("input_name", what=f"{name!r} is not a file name", why="no file can have that name",
                      fix="give the path of a log")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Problem("input_not_a_file", what=f"{name}: not a regular file", why="reading it could never end",
                      fix="give log files, or - for standard input")
    return os.fdopen(handle, "rb")


def _unreadable(path: str, error: Exception) -> Problem:
    said = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return Problem("input_unreadable", what=f"{display_name(path)}: {said}",
                   why="a log that cannot be read to its end cannot be judged",
                   fix="check the path, its permissions and the file system", exit_code=Exit.UNREACHABLE)


def _blocks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Blocks of CHUNK bytes. What was unpacked before an error comes before the error."""
    while True:
        parts: list[bytes] = []
        size = 0
        try:
            while size < CHUNK and (part := read(CHUNK - size)):
                parts.append(part)
                size += len(part)
        except Exception:
            if parts:
                yield b"".join(parts)
            raise
        if not parts:
            return
        yield b"".join(parts)


class _Again:
    """A stream from its first bytes on, which were read to see what it is; a pipe cannot be wound back."""

    def __init__(self, start: bytes, stream: IO[bytes]) -> None:
        self.start, self.stream = start, stream

    def read(self, size: int = -1) -> bytes:
        if not self.start:
            return self.stream.read(size)
        head = self.start if size < 0 else self.start[:size]
        self.start = self.start[len(head):]
        return head if 0 <= size <= len(head) else head + self.stream.read(size - len(head) if size > 0 else -1)


# What this Python cannot unpack: first bytes, name, and the command that does.
_PACKED = ((b"\x28\xb5\x2f\xfd", "Zstandard", "zstd -dc"), (b"PK\x03\x04", "zip", "unzip -p"),
           (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x -so"), (b"\x04\x22\x4d\x18", "LZ4", "lz4 -dc"))


def _unpacker(magic: bytes) -> Callable[[Any], Any] | None:
    if magic.startswith(b"\x1f\x8b"):
        return lambda raw: gzip.GzipFile(fileobj=raw)
    if magic.startswith(b"BZh"):
        return bz2.BZ2File
    if magic == b"\xfd7zXZ\0":
        return lzma.LZMAFile
    return None


def _utf16(start: bytes) -> str:
    """The encoding when a log starts as UTF-16 text, as shells of Windows write it; "" when it does not."""
    if start.startswith(codecs.BOM_UTF16_LE) or (len(start) > 5 and not any(start[1:6:2]) and all(start[0:6:2])):
        return "utf-16-le"
    if start.startswith(codecs.BOM_UTF16_BE) or (len(start) > 5 and not any(start[0:6:2]) and all(start[1:6:2])):
        return "utf-16-be"
    return ""


def _as_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks, UTF-16 turned into UTF-8; a byte-order mark is dropped."""
    first = next(blocks, b"")
    encoding = _utf16(first[:6])
    if not encoding:
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from blocks
        return
    decode = codecs.getincrementaldecoder(encoding)("replace").decode
    yield decode(first).removeprefix("\ufeff").encode("utf-8", "replace")
    for block in blocks:
        yield decode(block).encode("utf-8", "replace")


def chunks(path: str, cut: list[str] | None = None) -> Iterator[bytes]:
    """Pieces of about 1 MiB that end at a line end (except the last, and pieces of a line that is longer).

    Args:
        cut: gets the path of an archive that ended, or was damaged, before its end.

    Raises:
        Problem: as _open; the file cannot be read to its end (exit 3); packed in a way that Python cannot unpack, or
            damaged data before any text came out (exit 2).
    """
    with _open(path) as raw:
        try:
            magic = raw.read(6)
        except OSError as error:
            raise _unreadable(path, error) from None
        for start, name, command in _PACKED:
            if magic.startswith(start):
                raise Problem("input_packed", what=f"{display_name(path)}: packed with {name}",
                              why="this Python has no unpacker for it, so no line of it can be read",
                              fix=f"`{command} FILE | megamoe diagnose -`")
        unpack = _unpacker(magic)
        stream: Any = unpack(_Again(magic, raw)) if unpack is not None else raw  # closing `raw` closes it
        rest = b"" if unpack is not None else magic
        some = False
        blocks = _as_utf8(_with_start(rest, _blocks(raw.read if stream is raw else stream.read1)))
        rest = b""
        while True:
            try:
                block = next(blocks, None)
            except (OSError, EOFError, lzma.LZMAError, ValueError, zlib.error) as error:
                if stream is raw or (isinstance(error, OSError) and error.errno):
                    raise _unreadable(path, error) from None
                if some or rest:  # a cut archive still shows what it holds
                    if cut is not None:
                        cut.append(path)
                    break
                raise Problem("input_damaged", what=f"{display_name(path)}: {error}", why="nothing could be unpacked",
                              fix="copy the file again") from None
            if block is None:
                break
            some = some or bool(block)
            if block[:64] == _HOLE and not block.strip(b"\0"):
                continue
            end = block.rfind(b"\n") + 1
            if not end:
                rest += block
                if len(rest) > LINE_MAX:
                    yield rest
                    rest = b""
                continue
            yield rest + block[:end]
            rest = block[end:]
        if rest:
            yield rest


def _with_start(start: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    if start:
        yield start + next(blocks, b"")
    yield from blocks
