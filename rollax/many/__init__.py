"""Many runs in one process: runs that differ in seeds and numbers, and share what is compiled."""
