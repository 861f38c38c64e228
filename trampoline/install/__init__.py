"""Compiled programs in guest memory: their images, exception table, direct tail calls, listing."""

from trampoline.install.install import Function, Installed, Installer, PokeKey
from trampoline.install.tag import calc_tag

__all__ = ["Function", "Installed", "Installer", "PokeKey", "calc_tag"]
