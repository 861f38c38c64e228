"""Search for races: scenarios, campaigns, clusters."""
