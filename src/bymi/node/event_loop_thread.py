"""A thread with an event loop, in which all communication of a process runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """A thread with an event loop, for any number of nodes in this process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.waiting = False  # a caller of `wait` has nothing to lose by an interruption
        self._thread = threading.Thread(target=self._run, name="bymi node loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs in the loop."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            self.waiting = True
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            self.waiting = False

    def call(self, work: Callable[..., Any], *given: Any) -> None:
        """Call a function in the loop, soon."""
        self.loop.call_soon_threadsafe(work, *given)

    def close(self) -> None:
        """End the loop and the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
