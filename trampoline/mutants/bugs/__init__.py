"""The historic bugs, by what they concern. Numbers B1 to B40 and §4.8 are explained in docs/mutants.md."""
