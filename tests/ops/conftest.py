"""Functions as they are and compiled, their own checks of shapes, and rlax."""

import importlib
import warnings

import jax
import jaxtyping
import pytest


@pytest.fixture(params=[pytest.param(None, id="plain", marks=pytest.mark.long), pytest.param(jax.jit, id="compiled")])
def wrap(request):
    """Returns a function as it is, or compiled."""
    return request.param or (lambda function: function)


@pytest.fixture
def own_checks(monkeypatch):
    """Shapes are checked by the functions themselves alone, as without jaxtyping."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session")
def rlax():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies use names that JAX deprecates
        return importlib.import_module("rlax")
