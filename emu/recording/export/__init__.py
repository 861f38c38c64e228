"""Writers of a recording: Perfetto, speedscope, KCachegrind, collapsed stacks."""
