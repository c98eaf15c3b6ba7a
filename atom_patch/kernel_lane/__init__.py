"""The proof lane: FlyDSL's gfx950 kernels executed on a CPU, instruction by instruction.

    code object --elf.py--> machine code --decode.py--> instructions --machine/--> memory

* `elf.py`      a code object as bytes in, kernels with their metadata and machine code out; refuses what it cannot
vouch for
* `decode.py`   machine code -> `Instruction`s; an unknown opcode, operand or modifier is an error, never a guess
* `isa/`        one module per instruction family; each opcode stands there once: its number, its operands, its meaning
* `machine/`    the C core made from `isa/` and the system compiler: waves, LDS, memory, schedules, late completion,
checks
* `bundle.py`   launches on disk (below)
* `execute.py`  runs a bundle, or one step of it, under a schedule
* `judge.py`    compares memory with what the bundle expects
* `capture/`    FlyDSL's real host code on CPU tensors: its launches become bundles

**Bundle** (format "megamoe-kernel-bundle", version 2): a folder that any executor can run, be it this one, an emulator
or a GPU.

    bundle.json
    code/SHA256.hsaco     code objects
    data/NAME.bin         buffer content, raw little-endian bytes

`bundle.json` holds `format`, `version`, `case` (name and provenance), `ranks` (W), `buffers`, `steps`; what each may
hold stands in `bundle_form.py`, and a key beyond that is refused. A file named by a hash must have that content.

* A buffer: `name` ("r0.gm.rx_em": rank, owner, field), `rank`, `bytes`, `dtype`, `shape`, `align`,
  `init` ({"file": "data/x.bin"}, {"fill": 0}, or {"undefined": true}: whatever was in memory), and
  `pointers` [[offset, buffer, addend], ...]: 8-byte words that hold the address of buffer + addend; `heap` and
  `readonly` where they are true; `read_past`: bytes behind its end that kernels may read (0 where it is not given).
  They belong to no buffer, and an executor must make them readable.
* A step is one of
  {"host": [{"buffer", "offset", "file"}, ...]}: what the host writes between launches;
  {"copy": [{"buffer", "offset", "from", "at", "bytes"}, ...]}: what it copies between buffers, one after another: what
  kernels wrote, and may write otherwise in another order, is copied as it then is;
  {"free": [{"buffer"}, ...]}: what it gives back, so that no later launch may touch it;
  {"launches": [{"rank", "name", "kernel", "code", "grid", "block", "dynamic_lds", "kernarg" (hex), "pointers"}, ...]}:
  launches that run together, one per rank at most, as they wait for each other (kernarg pointers as in buffers; block
  counts in work-items, grid in work-groups);
  {"expect": [{"name", "buffer", "offset", "file", "dtype"}, ...]}: what memory must then hold, byte for byte.
* A runner is called as `CMD BUNDLE OUT`; it executes the steps in order, writes at each expect entry the bytes it has
  to `OUT/NAME.bin` (none is there before), and exits 0. `megamoe kernels check BUNDLE --result OUT` compares.

Facts behind it: the gfx950 ISA as LLVM 22 encodes it, and the kernels' behaviour (README.md of this package).
"""

from __future__ import annotations
