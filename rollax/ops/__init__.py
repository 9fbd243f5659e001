"""Losses, targets and statistics as pure JAX functions of arrays and a mask; `advantages` are in NumPy.

They raise ShapeError at trace time if arguments with equal annotated shapes differ in shape.
"""
