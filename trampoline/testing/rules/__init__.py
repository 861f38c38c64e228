"""Steps of the state machine, one file a subject."""
