"""Historic bugs, one file for each subject."""
