"""Losses, targets and statistics as pure functions of arrays and a mask, in JAX or (`advantages`, `evolution`) NumPy.

In JAX they raise ShapeError at trace time if arguments with equal annotated shapes differ in shape.
"""
