"""Sub-environments in processes of their own."""
