"""Ansible in the process of the tests, without its lasting effects on the other tests of that process."""

from __future__ import annotations

import contextlib
import sys

intern = sys.intern
with contextlib.suppress(ImportError):
    import ansible.module_utils.common.arg_spec  # noqa: F401 # what filters import, and what replaces sys.intern
# torch, when a later test of the same worker imports more of it, asks for the builtin function.
sys.intern = intern
