"""Metadata of traced functions (``kfunc_md``) in guest memory: how it is kept, found by guest code, and freed."""

from trampoline.kfunc_md.backend import MetadataBackend
from trampoline.kfunc_md.defects import SeedDefects
from trampoline.kfunc_md.flat import FlatTable
from trampoline.kfunc_md.hash import ChainReport, chain_report, hash_64
from trampoline.kfunc_md.lookup import Entered, LookupRegisters
from trampoline.kfunc_md.mds import BACKENDS, KfuncMds, MdEntry, backend_of
from trampoline.kfunc_md.padding import Padding
from trampoline.kfunc_md.table import HashTable

__all__ = [
    "BACKENDS",
    "ChainReport",
    "Entered",
    "FlatTable",
    "HashTable",
    "KfuncMds",
    "LookupRegisters",
    "MdEntry",
    "MetadataBackend",
    "Padding",
    "SeedDefects",
    "backend_of",
    "chain_report",
    "hash_64",
]
