"""Compiled programs in guest memory: images, exception table, direct tail calls, listing."""
