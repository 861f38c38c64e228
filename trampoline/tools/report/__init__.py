"""Reports as HTML pages and in the formats of profilers."""
