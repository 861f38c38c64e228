"""Schedulers, one file each: PCT, random walk, bounded, exhaustive, uniform random walk, replay."""
