"""Values of registers: ranges, tnums, types and their arithmetic."""
