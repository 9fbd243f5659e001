"""Finding out whether an environment is fit to be trained on."""
