"""The stand-in HIP library, loaded in front of the real one, and the launches that arrive through it."""

from __future__ import annotations

import ctypes
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernel_lane import elf, native

_LIBRARY = "libamdhip64.so.7"
_VERSIONS = "hip_4.2 { global: hip*; standin_connect; local: *; };\n"
_LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p)
_UINTS = ctypes.POINTER(ctypes.c_uint)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, _UINTS, _UINTS, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p))


@dataclass(frozen=True, slots=True)
class Launch:
    """One hipModuleLaunchKernel: the kernel of a code object, its grid in work-groups and its kernel arguments."""

    code: bytes
    kernel: elf.Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_lds: int
    kernarg: bytes


class StandIn:
    """Loads the library once per process; `receive` is called for every launch, in the thread that launches."""

    def __init__(self, receive: Callable[[Launch], None]) -> None:
        source = Path(__file__).with_name("standin_hip.c").read_text(encoding="utf-8")
        flags = ["-O1", "-Wall", f"-Wl,-soname,{_LIBRARY}", "-Wl,--version-script=versions"]
        path = native.build(_LIBRARY, source, flags, extra={"versions": _VERSIONS})
        # Global and before flydsl: the loader then resolves flydsl's libamdhip64.so.7 to this one by its soname.
        self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self._modules: list[tuple[bytes, elf.CodeObject]] = []
        self._functions: list[tuple[bytes, elf.Kernel]] = []
        self._receive = receive
        self.failure: BaseException | None = None
        self._callbacks = (_LOAD(self._load), _FUNCTION(self._function), _LAUNCH(self._launch))
        self._library.standin_connect(*self._callbacks)

    def _guard(self, work: Callable[[], int], failed: int) -> int:
        # A C caller cannot carry an exception: it is kept, HIP reports an error, and the driver raises it again.
        try:
            return work()
        except BaseException as error:
            self.failure = self.failure or error
            traceback.print_exc(file=sys.stderr)
            return failed

    def _load(self, image: int) -> int:
        def work() -> int:
            code = elf.image_at(image)
            self._modules.append((code, elf.read(code)))
            return len(self._modules)

        return self._guard(work, 0)

    def _function(self, module: int, name: bytes) -> int:
        def work() -> int:
            code, parsed = self._modules[module - 1]
            self._functions.append((code, parsed.kernel(name.decode())))
            return len(self._functions)

        return self._guard(work, 0)

    def _launch(self, function: int, grid, block, lds: int, arguments) -> int:  # type: ignore[no-untyped-def]
        def work() -> int:
            code, kernel = self._functions[function - 1]
            groups, threads = tuple(grid[:3]), tuple(block[:3])
            values = [
                ctypes.string_at(arguments[n], a.size)
                for n, a in enumerate(a for a in kernel.arguments if not a.hidden)
            ]
            kernarg = kernel.kernarg(values, groups, threads)
            self._receive(Launch(code, kernel, groups, threads, lds, kernarg))
            return 0

        return self._guard(work, 1)
