"""What releases verify differently, as far as the engine is concerned. Calls and contexts have their own tables."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """One release's verifier. A new release is a new value here."""

    name: str


RULES = {rules.name: rules for rules in (Rules("6.1"), Rules("6.12"), Rules("7.2"))}
