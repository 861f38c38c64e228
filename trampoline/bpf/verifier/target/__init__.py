"""Attach targets (bpf_check_attach_target())."""
