"""Settings of the process before JAX starts."""

import ctypes
import platform
import sys
import textwrap
from types import SimpleNamespace

import pytest

from rollax import ConfigError, PGTrainer
from rollax.core import runtime
from tests.env.refused import refused
from tests.python_process import output_of


@pytest.fixture
def settings(monkeypatch):
    """The settings that glibc receives."""
    received = []

    class Library:
        def __init__(self, name):
            assert name is None

        def mallopt(self, parameter, amount):
            received.append((parameter, amount))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    for name in ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    return received


def test_memory_is_kept_between_updates(settings):
    runtime._keep_memory()
    # malloc.h: M_TRIM_THRESHOLD -1, M_TOP_PAD -2, M_MMAP_THRESHOLD -3, whose maximum is 32 MiB.
    assert settings == [(-1, 512 * 2**20), (-2, 256 * 2**20), (-3, 32 * 2**20)]


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_a_users_own_settings_are_kept(settings, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    runtime._keep_memory()
    assert settings == []


def test_other_c_libraries_get_no_settings(settings, monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    runtime._keep_memory()
    assert settings == []


@pytest.mark.long
def test_a_process_forked_after_jax_has_started_raises_at_once():
    code = """
        import os, sys, warnings
        warnings.simplefilter("ignore")
        from rollax import PPOTrainer
        from rollax.core import runtime
        from rollax.errors import RollaxError

        def in_child(call):
            # What the forked process says: nothing, or its error.
            reading, writing = os.pipe()
            if (pid := os.fork()) == 0:
                try:
                    call()
                    os.write(writing, b"fine")
                except RollaxError as error:
                    os.write(writing, str(error).encode())
                finally:
                    os._exit(0)
            os.close(writing)
            os.waitpid(pid, 0)
            return os.read(reading, 10_000).decode()

        import jax
        assert in_child(runtime.refuse_forked) == "fine"  # imported is not started
        small = {"train_batch_size": 32, "sgd_minibatch_size": 32, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [4]}}
        trainer = PPOTrainer("CartPole-v1", small)
        for call in (trainer.train, trainer.evaluate, lambda: PPOTrainer("CartPole-v1", small)):
            said = in_child(call)
            assert "forked after JAX had started" in said, said
            assert 'get_context("spawn")' in said, said
        runtime.refuse_forked()  # the process itself goes on
    """
    output_of("-c", textwrap.dedent(code))


class TestGPUs:
    @pytest.fixture
    def devices(self, monkeypatch):
        """The devices of JAX and, if it is an entry, of PyTorch."""

        def have(jax_gpus, torch_gpus=None):
            platforms = ["cpu", *["gpu"] * jax_gpus]
            monkeypatch.setattr("jax.local_devices", lambda: [SimpleNamespace(platform=name) for name in platforms])
            torch = torch_gpus and SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: torch_gpus))
            monkeypatch.setitem(sys.modules, "torch", torch)

        return have

    @pytest.mark.parametrize(("jax_gpus", "torch_gpus"), [(2, None), (0, 2), (2, 1)])
    def test_as_many_as_there_are(self, devices, jax_gpus, torch_gpus):
        devices(jax_gpus, torch_gpus)
        for required in (0, 0.5, 1, 2):
            runtime.refuse_missing_gpus(required)
        with pytest.raises(ConfigError, match="config key 'num_gpus'\n  got:      2.5\n  expected: at most 2\n"):
            runtime.refuse_missing_gpus(2.5)

    def test_a_fraction_of_none(self, devices):
        devices(0)
        refused(ConfigError, runtime.refuse_missing_gpus, 0.25, says="expected: at most 0\n")

    def test_a_trainer_is_refused_but_not_its_evaluation(self, monkeypatch, tmp_path):
        config = {"num_gpus": 99, "train_batch_size": 8}
        with monkeypatch.context() as patched:
            patched.setattr(runtime, "refuse_missing_gpus", lambda required: None)
            with PGTrainer("CartPole-v1", config) as trainer:
                saved = trainer.save(tmp_path)
        refused(ConfigError, PGTrainer, "CartPole-v1", config, says="config key 'num_gpus'")
        PGTrainer.from_checkpoint(saved, num_gpus=0).stop()
        PGTrainer.from_checkpoint(saved, learn=False).stop()
