"""The command and its tools."""
