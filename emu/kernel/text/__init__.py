"""Kernel text: functions, entries, symbols, patching by text_poke."""
