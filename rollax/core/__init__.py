"""What all other packages use: arrays and trees, spaces, files, schedules, settings of JAX."""
