"""Historic bugs, one file a subject."""
