"""What calls of traced functions cost, as one self-contained page, and as the files that other tools read."""
