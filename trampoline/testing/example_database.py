"""Where failing examples are kept: Hypothesis's own databases, of a directory or of a Redis server that many share."""

import os

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase, MultiplexedDatabase

from trampoline.bpf.errors import TrampolineError
from trampoline.extras import extra

REDIS_VARIABLE = "TRAMP_REDIS"
"""Environment variable with the URL of the Redis server that is to be used where none is named."""
DIRECTORY = ".hypothesis/examples"
"""Hypothesis's own."""


def example_database(directory: str | os.PathLike[str] | None = DIRECTORY, redis: str | None = None) -> ExampleDatabase:
    """A database of a directory, and of a Redis server where one is named (``redis://HOST:PORT/NUMBER``), here or by
    TRAMP_REDIS in the environment; ``directory`` None: of the server alone.

    For ``settings(database=...)`` of Hypothesis. TrampolineError for a server that does not answer, or for neither.
    """
    url = redis or os.environ.get(REDIS_VARIABLE)
    databases: list[ExampleDatabase] = []
    if directory is not None:
        databases.append(DirectoryBasedExampleDatabase(directory))
    if url:
        databases.append(_shared(url))
    if not databases:
        raise TrampolineError(f"neither a directory nor a Redis server: {REDIS_VARIABLE} is not set")
    return databases[0] if len(databases) == 1 else MultiplexedDatabase(*databases)


def _shared(url: str) -> ExampleDatabase:
    with extra("campaigns", "a Redis server of examples"):
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis
        from redis.exceptions import RedisError
    try:
        server = Redis.from_url(url, socket_connect_timeout=5)
        server.ping()
    except (RedisError, ValueError, OSError) as error:
        raise TrampolineError(f"no Redis server at {url}: {error}") from None
    return RedisExampleDatabase(server)
