"""Losses, targets and statistics as pure JAX functions of arrays and a mask.

They raise ShapeError at trace time if arguments with equal annotated shapes differ in shape.
"""
