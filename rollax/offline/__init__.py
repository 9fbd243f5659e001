"""Recorded data: data sets and their formats, learning from them, and off-policy estimates.

PyArrow, h5py and Minari are imported by the formats that need them.
"""
