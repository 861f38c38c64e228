"""BTF: reader, writer, function models, C declarations."""
