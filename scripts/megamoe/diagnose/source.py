"""Log files as a stream of chunks of whole lines: plain, gzip or xz, in constant memory."""

from __future__ import annotations

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
_HOLE = bytes(CHUNK)  # logrotate's copytruncate leaves gigabytes of NULs before the first line
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


def chunks(path: str, cut: list[str] | None = None) -> Iterator[bytes]:
    """Pieces of about 1 MiB that end at a line end (except the last).

    Args:
        cut: gets the path of an archive that ended, or was damaged, before its end.

    Raises:
        Problem: as _open; the file cannot be read to its end (exit 3); damaged gzip or xz data before any text came
            out (exit 2).
    """
    with _open(path) as raw:
        try:
            magic = raw.read(6)
        except OSError as error:
            raise _unreadable(path, error) from None
        if magic.startswith(b"\x1f\x8b") or magic == b"\xfd7zXZ\0":
            if not raw.seekable():
                raise Problem("input_compressed_stream", what="compressed data on standard input",
                              why="it must be read twice", fix="give the file, or pipe through zcat or xzcat")
            raw.seek(0)
            stream: Any = gzip.GzipFile(fileobj=raw) if magic[:2] == b"\x1f\x8b" else (
                lzma.LZMAFile(raw))  # noqa: SIM115 - closing `raw` closes it
            rest = b""
        else:
            stream, rest = raw, magic
        some = False
        blocks = _blocks(raw.read if stream is raw else stream.read1)
        while True:
            try:
                block = next(blocks, b"")
            except (OSError, EOFError, lzma.LZMAError, ValueError, zlib.error) as error:
                if stream is raw or (isinstance(error, OSError) and error.errno):
                    raise _unreadable(path, error) from None
                if some or rest:  # a cut archive still shows what it holds
                    if cut is not None:
                        cut.append(path)
                    break
                raise Problem("input_damaged", what=f"{display_name(path)}: {error}", why="nothing could be unpacked",
                              fix="copy the file again") from None
            if not block:
                break
            some = True
            if block == _HOLE:
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
