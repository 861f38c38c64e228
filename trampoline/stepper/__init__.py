"""The terminal's debugger: what it shows as lines of text, a screen for them, and the same line by line."""
