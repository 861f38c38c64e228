"""Counts as a test: baselines of the instructions that paths take, and what differs from them.

``Path`` is a path as it was counted (``capture`` makes one of a call), ``Baseline`` the file, ``compare`` finds what
differs and ``explain`` says it. The pytest plugin and ``tramp count`` are the users.
"""
