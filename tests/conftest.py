"""One torch thread a test process: the suite runs in parallel, and sums then come out in one order."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
