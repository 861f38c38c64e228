"""A campaign's chunks as tasks of a Dask cluster (the extra ``campaigns``)."""

import queue
import uuid
from typing import Any

from trampoline.bpf.errors import TrampolineError
from trampoline.extras import extra
from trampoline.tools.explore.chunk import Chunk, ChunkResult, Work, run_chunk_elsewhere

_ANSWERS = 10
"""Timeout for an answer of the scheduler, in seconds."""
_DEATHS = 5
"""Number of workers that may die while they run a chunk, before it is abandoned."""


class Cluster:
    """Runs chunks on the workers of a Dask scheduler, which need tramplab installed.

    A chunk whose worker dies is run again by another one; its result is counted once. Raises TrampolineError if Dask
    is not installed, or no scheduler answers at ``address`` (``tcp://HOST:PORT``).
    """

    def __init__(self, address: str) -> None:
        with extra("campaigns", "a Dask cluster"):
            from distributed import Client
        client: Any = Client  # Dask's functions have no types
        try:
            self._client = client(address, timeout=_ANSWERS, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise TrampolineError(f"no Dask scheduler at {address}: {reason}") from None
        self._address = address
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._futures: dict[int, Any] = {}
        """Chunks in flight, by number."""
        self._name, self._work = "", Work("", "")

    @property
    def slots(self) -> int:
        """Two chunks for each thread of the present workers: one that runs and one that waits."""
        return 2 * max(sum(int(threads) for threads in self._client.nthreads().values()), 1)

    @property
    def under_way(self) -> int:
        return len(self._futures)

    def begin(self, work: Work, seconds: float | None) -> None:
        """As in Workers. Chunks in flight are abandoned when the time is over, because clocks of machines differ."""
        self.stop()
        self._name, self._work = f"tramplab-{uuid.uuid4().hex}", work

    def submit(self, chunk: Chunk) -> None:
        # The chunk's key stays the same for the scheduler when it is run again.
        future = self._client.submit(
            run_chunk_elsewhere, self._work, chunk, key=f"{self._name}-{chunk.number}", pure=False, retries=_DEATHS
        )
        self._futures[chunk.number] = future
        future.add_done_callback(lambda _: self._done.put((self._name, chunk.number)))

    def finished(self, timeout: float | None) -> list[ChunkResult]:
        """As in Workers. Raises TrampolineError if the cluster is gone, or a chunk has killed too many workers."""
        found: list[ChunkResult] = []
        while not found:
            try:
                name, number = self._done.get(timeout=timeout)
            except queue.Empty:
                break
            future = self._futures.pop(number, None) if name == self._name else None
            if future is not None:
                found.append(self._result(future, number))
        return found

    def _result(self, future: Any, number: int) -> ChunkResult:
        from distributed import CancelledError, KilledWorker

        try:
            # If its worker has died meanwhile, the chunk is run again.
            result = future.result()
        except KilledWorker:
            raise TrampolineError(f"chunk {number} was given up: its workers died") from None
        except (CancelledError, OSError):
            raise TrampolineError(f"the Dask scheduler at {self._address} is gone") from None
        assert isinstance(result, ChunkResult)
        return result

    def stop(self) -> None:
        """Abandon the chunks in flight."""
        futures, self._futures = list(self._futures.values()), {}
        if futures:
            self._client.cancel(futures, force=True)

    def close(self) -> None:
        self.stop()
        self._client.close()
