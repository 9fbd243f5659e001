"""Policy optimizers: how samples become updates."""
