"""The walk over instructions (do_check()): branches, pruning, loops."""
