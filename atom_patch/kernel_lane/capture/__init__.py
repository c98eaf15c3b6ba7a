"""FlyDSL's real host code on CPU tensors: module loads and launches are handed to us instead of a GPU.

`hip.py` and `standin_hip.c` stand in for libamdhip64, `rocm.py` for the two device libraries and the linker's place,
`upstream.py` for mori and for torch's view of a GPU, `ranks.py` runs W ranks in one process and lets their launches
meet, `recorder.py` writes what happened as a bundle, `cases.py` names the layers that are captured.
Runs in the Python that has flydsl (0.2.2 to 0.2.4) and torch; needs no GPU and no ROCm.
"""
