"""Runs that others play and go on training: as a folder, a zip file, or a repository of the Hugging Face Hub."""
