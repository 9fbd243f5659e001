"""A policy as one function from raw observations to environment actions, stored as ONNX or StableHLO."""
