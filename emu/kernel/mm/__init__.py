"""Memory allocators: slab objects and executable memory."""
