"""JAX's primitives as ONNX nodes, by kind; `table.py` has them all."""
