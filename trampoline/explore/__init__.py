"""Looking for races: scenarios of calls and operations that overlap, in every design, and what must hold in them."""
