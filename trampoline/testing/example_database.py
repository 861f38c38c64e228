"""Database of failing examples: Hypothesis's own, in a directory or on a shared Redis server."""

import os

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase, MultiplexedDatabase

from trampoline.bpf.errors import TrampolineError
from trampoline.extras import extra

REDIS_VARIABLE = "TRAMP_REDIS"
"""Environment variable with the URL of the Redis server that is used if none is passed."""
DIRECTORY = ".hypothesis/examples"
"""Hypothesis's own default."""


def example_database(directory: str | os.PathLike[str] | None = DIRECTORY, redis: str | None = None) -> ExampleDatabase:
    """Example database in a directory, and on a Redis server if one is named (``redis://HOST:PORT/NUMBER``), as an
    argument or by TRAMP_REDIS in the environment. ``directory`` None: the server alone.

    For ``settings(database=...)`` of Hypothesis. TrampolineError if the server does not answer, or if neither is named.
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
