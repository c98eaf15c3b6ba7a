"""The container's environment against the planned one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from megamoe.deploy.sizes import mori_bytes_as_parsed
from megamoe.verify_deploy.rows import Row, compared, unknown

# Variables that steer the engine. The image sets of these only folders and targets of its own (docker/Dockerfile).
_STEERS = re.compile(r"(ATOM|MORI|AITER|FLYDSL|FUSED_MEGA|HIP_VISIBLE|ROCR_VISIBLE|CUDA_VISIBLE|HSA_OVERRIDE)")
_OF_THE_IMAGE = re.compile(r"_(DIR|ARCHS|NIC|PATH)\Z")
# Variables that can steer it, and that a ROCm base may well set.
_MAY_STEER = re.compile(r"(HIP_|HSA_|ROCR_|NCCL_|RCCL_|TORCH_|PYTORCH_|TRITON_|LD_PRELOAD\Z|PYTHONPATH\Z)")


def environment_rows(
    planned: Mapping[str, str], config: dict[str, Any], spelled: frozenset[str], image_env: Mapping[str, str] | None
) -> Iterator[Row]:
    """One row per planned variable, and one per variable that steers the engine and is not planned.

    Args:
        spelled: names that DEPLOY itself gives: missing, they are drift even in a shortened inspection.
        image_env: what the image sets; None when only the container was inspected.
    """
    given = config.get("Env")
    if not isinstance(given, list):
        yield unknown("env", f"{len(planned)} variables")
        return
    running = environment(given)
    whole = "PATH" in running  # every image sets it, so an inspection without it has been shortened
    for name, wanted in planned.items():
        have = running.get(name)
        if have is None and not whole and name not in spelled:
            yield unknown(f"env {name}", wanted, "not in this Env, which is shortened: it has no PATH")
        elif have is not None and name == "MORI_SHMEM_HEAP_SIZE":
            yield compared(f"env {name}", wanted, have, str(mori_bytes_as_parsed(have)) == wanted)
        else:
            yield compared(f"env {name}", wanted, "missing" if have is None else have, have == wanted)
    for name in sorted(running.keys() - planned.keys()):
        if not (_STEERS.match(name) or _MAY_STEER.match(name)):
            continue
        if image_env is not None:
            if image_env.get(name) != running[name]:
                yield compared(f"env {name}", "not planned", running[name], False)
        elif _STEERS.match(name) and not _OF_THE_IMAGE.search(name):
            yield compared(f"env {name}", "not planned", running[name], False)
        else:
            yield unknown(f"env {name}", "not planned", f"{running[name]}; from the image or by hand")


def environment(given: list[Any]) -> dict[str, str]:
    """NAME=value entries as a mapping; of a name given twice the last counts, as in a process."""
    return dict(str(entry).partition("=")[::2] for entry in given)
