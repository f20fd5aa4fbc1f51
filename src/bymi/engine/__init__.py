"""Where a run happens. One engine so far: all nodes in one process."""

from __future__ import annotations

from bymi.engine.simulate import simulate

__all__ = ["simulate"]
