; The five mori device functions that MegaMoE calls, and the one ockl function that its stage-1 calls.
; mori's own are loops over a relaxed system-scope load; real mori bitcode gives the same machine code (README.md).
; Plain LLVM assembly: flydsl's linker reads it where it expects bitcode.
target triple = "amdgcn-amd-amdhsa"

define linkonce_odr i32 @mori_shmem_int32_wait_until_equals(i64 %address, i32 %value) alwaysinline nounwind {
entry:
  %p = inttoptr i64 %address to ptr addrspace(1)
  br label %loop
loop:
  %seen = load atomic i32, ptr addrspace(1) %p monotonic, align 4
  %done = icmp eq i32 %seen, %value
  br i1 %done, label %exit, label %loop
exit:
  ret i32 0
}

define linkonce_odr i32 @mori_shmem_int32_wait_until_greater_than(i64 %address, i32 %value) alwaysinline nounwind {
entry:
  %p = inttoptr i64 %address to ptr addrspace(1)
  br label %loop
loop:
  %seen = load atomic i32, ptr addrspace(1) %p monotonic, align 4
  %done = icmp sgt i32 %seen, %value
  br i1 %done, label %exit, label %loop
exit:
  ret i32 %seen
}

define linkonce_odr i32 @mori_shmem_int64_wait_until_equals(i64 %address, i64 %value) alwaysinline nounwind {
entry:
  %p = inttoptr i64 %address to ptr addrspace(1)
  br label %loop
loop:
  %seen = load atomic i64, ptr addrspace(1) %p monotonic, align 8
  %done = icmp eq i64 %seen, %value
  br i1 %done, label %exit, label %loop
exit:
  ret i32 0
}

define linkonce_odr i64 @mori_shmem_int64_wait_until_greater_than(i64 %address, i64 %value) alwaysinline nounwind {
entry:
  %p = inttoptr i64 %address to ptr addrspace(1)
  br label %loop
loop:
  %seen = load atomic i64, ptr addrspace(1) %p monotonic, align 8
  %done = icmp sgt i64 %seen, %value
  br i1 %done, label %exit, label %loop
exit:
  ret i64 %seen
}

define linkonce_odr i32 @mori_shmem_uint64_wait_until_equals(i64 %address, i64 %value) alwaysinline nounwind {
entry:
  %p = inttoptr i64 %address to ptr addrspace(1)
  br label %loop
loop:
  %seen = load atomic i64, ptr addrspace(1) %p monotonic, align 8
  %done = icmp eq i64 %seen, %value
  br i1 %done, label %exit, label %loop
exit:
  ret i32 0
}
