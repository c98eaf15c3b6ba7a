"""Safe reading of files that a person names: every refusal is a Problem, never a traceback, and nothing is executed.

Shared by the verbs. Two exit codes: 2 when the content or the kind of file is wrong, 3 when it cannot be reached
(missing, no permission, I/O error). YAML is read from parser events, not through PyYAML's constructors: that gives
line numbers, refuses duplicate keys, aliases ("YAML bombs") and tags, bounds the depth, and never recurses.
Scalars follow the YAML 1.2 core schema, so `no`, `010` and `22:22` stay what they look like.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from megamoe_atom.problem import Exit, Problem

MAX_CONFIG_BYTES = 1 << 20  # a deploy file is about 1 KB; anything near 1 MiB is not one
MAX_JSON_BYTES = 64 << 20  # facts and inspections of a big host stay below 1 MB
MAX_DEPTH = 64
_DIGITS_MAX = 18  # longer integers stay text: they are mistakes, and int() of thousands of digits is slow

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)\Z")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?\Z")

_taken: BinaryIO | None = None  # the standard input that was handed out


def _refuse(code: str, name: str, what: str, why: str, fix: str, exit_code: Exit = Exit.REFUSED) -> Problem:
    return Problem(code, what=f"{name}: {what}", why=why, fix=fix, exit_code=exit_code)


def read_bytes(path: str | Path, *, max_bytes: int = MAX_CONFIG_BYTES) -> bytes:
    """The content of a regular file, or of standard input when path is "-".

    Raises:
        Problem: missing or unreadable (exit 3); directory, FIFO, device, or larger than max_bytes (exit 2).
    """
    name = display_name(path)
    if str(path) == "-":
        try:
            data = standard_input().read(max_bytes + 1)
        except OSError as error:
            raise _cannot_open(name, error) from None
    else:
        if "\0" in name:
            raise _refuse("input_name", repr(name), "the file name holds a NUL byte", "no file can have that name",
                          "give the path of a file")
        try:
            # O_NONBLOCK: opening a FIFO without a writer would otherwise wait for ever.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _cannot_open(name, error) from None
        try:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode):
                kind = ("a directory" if stat.S_ISDIR(mode) else "a FIFO" if stat.S_ISFIFO(mode) else
                        "a socket" if stat.S_ISSOCK(mode) else "a device")
                raise _refuse("input_not_a_file", name, f"this is {kind}, not a regular file",
                              "reading it could wait for ever or never end", "give a regular file, or -")
            data = b""
            while len(data) <= max_bytes:
                chunk = os.read(handle, min(1 << 20, max_bytes + 1 - len(data)))
                if not chunk:
                    break
                data += chunk
        except OSError as error:
            raise _cannot_open(name, error) from None
        finally:
            os.close(handle)
    if len(data) > max_bytes:
        raise _refuse("input_too_big", name, f"larger than {max_bytes} bytes",
                      "a file of this kind is far smaller, so this is probably another file", "check the path")
    return data


def standard_input() -> BinaryIO:
    """Standard input as bytes.

    Raises:
        Problem: it was closed by whoever started this process (exit 3), or is asked for a second time (exit 2).
    """
    global _taken
    if sys.stdin is None:
        raise _refuse("input_missing", "standard input", "it is closed", "there is nothing to judge",
                      "pipe the text in, or give a file", Exit.UNREACHABLE)
    if _taken is sys.stdin.buffer:
        raise _refuse("input_twice", "standard input", "two inputs are to be read from it",
                      "it can be read once, so one of them would be empty", "give - once, and a file for the other")
    _taken = sys.stdin.buffer
    return _taken


def display_name(path: str | Path) -> str:
    """How messages name an input; a file name that is not UTF-8 is shown with replacement characters."""
    return "standard input" if str(path) == "-" else os.fsencode(str(path)).decode("utf-8", "replace")


def _cannot_open(name: str, error: OSError) -> Problem:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _refuse("input_missing", name, "no such file", "there is nothing to judge", "check the path",
                       Exit.UNREACHABLE)
    if error.errno in (errno.EACCES, errno.EPERM):
        return _refuse("input_permission", name, "permission denied", f"user {os.geteuid()} may not read it",
                       f"let this user read it (`ls -l {name}` shows the owner)", Exit.UNREACHABLE)
    if error.errno == errno.ELOOP:
        return _refuse("input_missing", name[:200], "a symbolic link that leads back to itself",
                       "there is no file at its end", "see `readlink` and point it at the file", Exit.UNREACHABLE)
    if error.errno == errno.ENAMETOOLONG:
        return _refuse("input_missing", name[:200], os.strerror(error.errno), "no file can have that name",
                       "check the path", Exit.UNREACHABLE)
    return _refuse("input_unreadable", name, os.strerror(error.errno or 0), "the operating system could not read it",
                   "check the file system, then run again", Exit.UNREACHABLE)


def read_text(path: str | Path, *, max_bytes: int = MAX_CONFIG_BYTES) -> str:
    """The content as text; a byte-order mark is dropped.

    Raises:
        Problem: as read_bytes, or not UTF-8 (exit 2, names the byte offset).
    """
    data = read_bytes(path, max_bytes=max_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refuse("input_not_utf8", display_name(path),
                      f"byte {error.start} (0x{data[error.start]:02x}) is not UTF-8",
                      "the text cannot be read without guessing an encoding",
                      "save it as UTF-8 (`iconv -t UTF-8`), or check that this is the right file") from None


@dataclass(slots=True)
class Document:
    """A parsed YAML mapping. `lines` gives the 1-based line of each key path, such as ("args", "port")."""

    name: str
    data: dict[str, Any]
    lines: dict[tuple[str | int, ...], int] = field(default_factory=dict)

    def line_of(self, path: tuple[str | int, ...]) -> int | None:
        """Line of a key path, or of its nearest parent that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def scalar(text: str) -> Any:
    """A plain YAML scalar by the 1.2 core schema: null, true/false, decimal integer, float, else text."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if _INT.match(text):
        return int(text) if len(text.lstrip("+-")) <= _DIGITS_MAX else text
    if _FLOAT.match(text) and len(text) <= 40 and math.isfinite(float(text)):
        return float(text)
    return text


def load_yaml(path: str | Path, *, max_bytes: int = MAX_CONFIG_BYTES) -> Document:
    """Reads one YAML document whose top level is a mapping (JSON is accepted too: it is YAML).

    Raises:
        Problem: as read_text; syntax, duplicate key, alias, tag, more than one document, nesting deeper than 64,
            a key that is not text, or a top level that is not a mapping (all exit 2, with file and line).
    """
    return parse_yaml(read_text(path, max_bytes=max_bytes), display_name(path))


def parse_yaml(text: str, name: str) -> Document:
    """As load_yaml, from text."""
    import yaml  # here, so that verbs which read only JSON do not pay for it

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    lines: dict[tuple[str | int, ...], int] = {}
    roots: list[Any] = []
    # One frame per open collection: (container, its path, key waiting for a value or _NO_KEY).
    stack: list[tuple[Any, tuple[str | int, ...], list[Any]]] = []

    def bad(code: str, mark: Any, what: str, why: str, fix: str) -> Problem:
        return _refuse(code, f"{name}:{mark.line + 1}", what, why, fix)

    def add(value: Any, mark: Any, *, is_scalar: bool) -> tuple[str | int, ...]:
        """Puts a finished or opening node into its parent; returns the node's path."""
        if not stack:
            if roots:
                raise bad("yaml_documents", mark, "more than one document", "only the first would be used",
                          "keep one document per file (remove the extra ---)")
            roots.append(value)
            return ()
        container, path, pending = stack[-1]
        if isinstance(container, list):
            here: tuple[str | int, ...] = (*path, len(container))
            lines[here] = mark.line + 1
            container.append(value)
            return here
        if not pending:
            if not is_scalar:
                raise bad("yaml_key", mark, "a mapping or list is used as a key", "keys here are names",
                          "quote the key; if this came from a template, `{{ ... }}` must be quoted")
            key = value if isinstance(value, str) else None if value is None else str(value)
            if key is None:
                raise bad("yaml_key", mark, "empty key", "keys here are names", "give the key a name")
            if key in container:
                raise bad("yaml_duplicate_key", mark,
                          f"key {key!r} is given twice (first on line {lines[(*path, key)]})",
                          "YAML readers keep one of the two without a word", "remove one of them")
            lines[(*path, key)] = mark.line + 1
            container[key] = None
            pending.append(key)
            return (*path, key)
        key = pending.pop()
        container[key] = value
        return (*path, key)

    try:
        for event in yaml.parse(text, Loader=loader):
            mark = event.start_mark
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise bad("yaml_alias", mark, f"anchor or alias ({getattr(event, 'anchor', '')!s})",
                          "an alias can expand a few lines into gigabytes, and hides what a key holds",
                          "write the value out where it is used")
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent, yaml.ScalarEvent)):
                # libyaml gives "" for a plain scalar, the Python parser None
                quoted = isinstance(event, yaml.ScalarEvent) and event.style in ("'", '"', "|", ">")
                if event.tag not in (None, "!") and not (event.tag == "tag:yaml.org,2002:str" and
                                                         isinstance(event, yaml.ScalarEvent)):
                    raise bad("yaml_tag", mark, f"tag {event.tag}", "tags can build arbitrary objects",
                              "remove the tag and write a plain value")
                if isinstance(event, yaml.ScalarEvent):
                    add(event.value if quoted or event.tag else scalar(event.value), mark, is_scalar=True)
                    continue
                if len(stack) >= MAX_DEPTH:
                    raise bad("yaml_depth", mark, f"nested deeper than {MAX_DEPTH} levels",
                              "no key of this file is that deep", "check that this is the right file")
                value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
                stack.append((value, add(value, mark, is_scalar=False), []))
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                stack.pop()
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        spot: Any = getattr(error, "problem_mark", None)
        where = f"{name}:{spot.line + 1}" if spot is not None else name
        what = " ".join(str(getattr(error, "problem", None) or getattr(error, "reason", None) or error).split())[:200]
        raise _refuse("yaml_syntax", where, f"not YAML: {what}", "nothing in the file can be trusted until it parses",
                      "correct that line (indentation, quotes, brackets)") from None
    root = roots[0] if roots else None
    if not isinstance(root, dict):
        kind = "empty" if root is None else f"a {type(root).__name__}"
        raise _refuse("yaml_not_a_mapping", name, f"the document is {kind}, not a mapping of keys to values",
                      "the keys are what is judged", "start from the example in README.md")
    return Document(name, root, lines)


def load_json(path: str | Path, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Reads JSON strictly: no duplicate keys, no NaN or Infinity, bounded depth.

    Raises:
        Problem: as read_text; truncated or otherwise invalid JSON (exit 2, names the line).
    """
    return parse_json(read_text(path, max_bytes=max_bytes), display_name(path))


def parse_json(text: str, name: str) -> Any:
    """As load_json, from text."""
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in pairs:
            if key in out:
                raise _refuse("json_duplicate_key", name, f"key {key!r} is given twice",
                              "JSON readers keep one of the two without a word", "remove one of them")
            out[key] = value
        return out

    def no_constant(word: str) -> Any:
        raise _refuse("json_number", name, f"{word} is not a JSON number", "it would pass or fail every comparison",
                      "write the real number, or leave the key out when it is unknown")

    def finite_float(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else no_constant(digits[:40])

    def bounded_int(digits: str) -> Any:
        return int(digits) if len(digits.lstrip("-")) <= _DIGITS_MAX else finite_float(digits)

    try:
        value = json.loads(text, object_pairs_hook=no_duplicates, parse_constant=no_constant,
                           parse_int=bounded_int, parse_float=finite_float)
        if _SURROGATE.search(text):  # half of a pair cannot be printed or written back
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except UnicodeEncodeError:
        raise _refuse("json_surrogate", name, "a \\ud8xx escape without its other half", "it is not a character",
                      "write the character itself, in UTF-8") from None
    except json.JSONDecodeError as error:
        raise _refuse("json_syntax", f"{name}:{error.lineno}", f"not JSON: {error.msg}",
                      "a truncated file looks like this too", "write the file again, completely") from None
    except RecursionError:
        raise _refuse("json_depth", name, "nested too deeply", "no file of this kind is that deep",
                      "check that this is the right file") from None
