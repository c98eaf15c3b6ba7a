; __ockl_get_num_groups: the launch's grid in work-groups, from the hidden arguments (code object version 5 and later:
; hidden_block_count_x, _y, _z are the first three words of the implicit argument block).
target triple = "amdgcn-amd-amdhsa"

declare ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()

define linkonce_odr i64 @__ockl_get_num_groups(i32 %axis) alwaysinline nounwind {
entry:
  %base = call ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
  switch i32 %axis, label %other [
    i32 0, label %x
    i32 1, label %y
    i32 2, label %z
  ]
x:
  %cx = load i32, ptr addrspace(4) %base, align 4
  br label %exit
y:
  %py = getelementptr i8, ptr addrspace(4) %base, i64 4
  %cy = load i32, ptr addrspace(4) %py, align 4
  br label %exit
z:
  %pz = getelementptr i8, ptr addrspace(4) %base, i64 8
  %cz = load i32, ptr addrspace(4) %pz, align 4
  br label %exit
other:
  br label %exit
exit:
  %count = phi i32 [ %cx, %x ], [ %cy, %y ], [ %cz, %z ], [ 1, %other ]
  %wide = zext i32 %count to i64
  ret i64 %wide
}
