"""Search for parameters by the returns of whole episodes, without gradients of a loss."""
