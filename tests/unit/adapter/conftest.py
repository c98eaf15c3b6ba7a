"""Keeps torch to one thread: the suite shares its machine."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
