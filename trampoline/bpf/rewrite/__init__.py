"""Rewriting of a verified program before the JIT (bpf_do_misc_fixups(), convert_ctx_accesses())."""
