"""Steps of the state machine, one file per subject."""
