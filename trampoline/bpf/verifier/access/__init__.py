"""Memory accesses: context, stack, map values, BTF objects, packets."""
