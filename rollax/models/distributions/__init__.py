"""Action distributions: pure JAX functions of a flat array of parameters, by action space."""
