"""Losses, targets and statistics as pure functions of arrays and a mask, in JAX or (`advantages`, `evolution`) NumPy.

Functions in JAX raise ShapeError at trace time for arguments of different shapes that would broadcast by mistake.
"""
