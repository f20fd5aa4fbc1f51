"""Where a run happens: all nodes in one process, or spread over many under torchrun."""

from __future__ import annotations

from bymi.engine.simulate import simulate

__all__ = ["simulate"]
