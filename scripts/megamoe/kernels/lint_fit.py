"""How many work-groups of a kernel a GPU holds at once, from the kernel's own registers and LDS. Pure arithmetic.

MegaMoE's stage-1 and combine wait inside the kernel for their other work-groups. A work-group that does not fit waits
outside for one that will never end, so all must be resident together.
Source: AMD "CDNA4 ISA" and LLVM's AMDGPU tables for gfx950: 512 vector registers per lane and SIMD in blocks of 8, with
AGPRs; 160 KiB of LDS per CU in blocks of 1,280 bytes; 4 SIMDs of at most 8 waves; 16 work-groups that have a barrier.
"""

from __future__ import annotations

from dataclasses import dataclass

SIMDS = 4
WAVES_PER_SIMD = 8
VGPRS = 512
VGPR_BLOCK = 8
LDS_BYTES = 160 * 1024
LDS_BLOCK = 1280
GROUPS_PER_CU = 16
FULL_CU_COUNT = 256


@dataclass(frozen=True, slots=True)
class Need:
    """One work-group: threads; vector registers that its descriptor allocates to a lane, AGPRs included (LLVM may
    allocate more than the code uses, where few waves are expected); LDS bytes, static and dynamic."""

    threads: int
    vgprs: int
    lds: int

    @property
    def waves(self) -> int:
        return -(-self.threads // 64)


def groups_per_cu(need: Need) -> int:
    """Work-groups that one compute unit holds at the same time; 0 when not even one fits."""
    registers = -(-max(need.vgprs, 1) // VGPR_BLOCK) * VGPR_BLOCK
    waves_per_simd = min(WAVES_PER_SIMD, VGPRS // registers)
    # A work-group's waves are dealt to the SIMDs in turn, so the fullest SIMD holds ceil(waves / 4) of them.
    by_waves = (
        waves_per_simd // -(-need.waves // SIMDS) if need.waves >= SIMDS else waves_per_simd * SIMDS // need.waves
    )
    lds = -(-need.lds // LDS_BLOCK) * LDS_BLOCK
    by_lds = LDS_BYTES // lds if lds else GROUPS_PER_CU
    return min(by_waves, by_lds, GROUPS_PER_CU)


def resident_groups(need: Need, cu_count: int) -> int:
    return groups_per_cu(need) * cu_count
