"""One Hypothesis profile for every run, so that the same tree gives the same verdict everywhere.

`pytest --hypothesis-profile=explore` draws at random instead, and more.
"""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("repeatable")
