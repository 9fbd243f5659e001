"""What all other packages stand on: arrays and trees, spaces, files, schedules, settings of JAX."""
