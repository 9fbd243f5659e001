"""Sub-environments in separate processes."""
