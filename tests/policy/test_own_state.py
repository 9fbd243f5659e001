"""Checkpoints store networks, optimizers and arrays of user-defined policies, or refuse them with a reason."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from rollax import Trainer, load_policy
from rollax.errors import CheckpointError
from rollax.policy.own_state import own_arrays, set_own_arrays
from tests.algorithms.own_code import Curious, CuriousTrainer

CONFIG = {"num_envs_per_worker": 2, "train_batch_size": 16, "sgd_minibatch_size": 16, "num_sgd_iter": 1}
CONFIG |= {"model": {"fcnet_hiddens": (4,)}}
ATTRIBUTES = {"target", "nets", "nnx_optimizer", "scale", "scale_state", "best", "key"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint, the policy's own arrays at that time, and the statistics of the next iteration."""
    with CuriousTrainer("CartPole-v1", {**CONFIG, "seed": 5, "novelty": 0.25}) as trainer:
        trainer.train()
        path = trainer.save(tmp_path_factory.mktemp("saved"), exact=True)
        own = own_arrays(trainer.get_policy())
        return path, own, trainer.train()["info"]


@pytest.mark.long
def test_restoring_continues_exactly(saved):
    path, own, info = saved
    assert own.keys() == ATTRIBUTES
    assert own["nnx_optimizer"]["['step'].value"] == 1
    with CuriousTrainer.from_checkpoint(path, seed=9) as trainer:  # another seed changes all initial values
        np.testing.assert_equal(own_arrays(trainer.get_policy()), own)
    with Trainer.from_checkpoint(path, trust_code=True) as trainer:
        assert type(trainer) is CuriousTrainer
        assert trainer.train()["info"] == info


@pytest.mark.long
def test_load_policy_restores_it(saved):
    path, own, _ = saved
    obs = np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)
    actions = []
    for known in ({"trainer_class": CuriousTrainer}, {"policy_class": Curious}, {"trust_code": True}):
        runner = load_policy(path, **known)
        np.testing.assert_equal(own_arrays(runner.policy), own)
        assert runner.policy.config.novelty == 0.25
        actions.append(runner.compute_actions(obs)[0].tolist())
    assert actions[0] == actions[1] == actions[2]
    with pytest.raises(CheckpointError, match=r"own_code:Curious(.|\n)*policy_class=YourPolicy(.|\n)*trust_code=True"):
        load_policy(path)
    with pytest.raises(CheckpointError, match=r"own_code:CuriousTrainer(.|\n)*trust_code=True"):
        Trainer.from_checkpoint(path)


class TestOnItsOwn:
    def test_modules_keep_their_identity(self):
        policy, other = Holder(net=linear(0), nets=[linear(1)]), Holder(net=linear(2), nets=[linear(3)])
        net = other.net
        set_own_arrays(other, own_arrays(policy))
        assert other.net is net
        np.testing.assert_equal(own_arrays(other), own_arrays(policy))

    def test_other_attributes_are_no_state(self):
        policy = Holder(
            table=np.ones(3), count=5, text="x", optimizer=optax.adam(1.0), act=jnp.sin, cases={1: 2, "a": 3}, none=None
        )
        assert own_arrays(policy) == {}
        set_own_arrays(policy, {})

    @pytest.mark.parametrize(
        ("attributes", "arrays", "message"),
        [
            ({}, {"net": {}}, r"got: +\['net'\]\n +expected: \[\]"),  # saved by a policy that made it later
            ({"w": jnp.ones(2)}, {}, r"got: +\[\]\n +expected: \['w'\]"),
            ({"w": jnp.ones(2)}, {"w": {"": np.ones(3)}}, r"attribute w differ(.|\n)*\(3,\)(.|\n)*\(2,\)"),
            ({"w": [jnp.ones(2)]}, {"w": {"[1]": np.ones(2)}}, r"attribute w differ(.|\n)*\[1\](.|\n)*\[0\]"),
        ],
    )
    def test_other_state_is_refused(self, attributes, arrays, message):
        with pytest.raises(CheckpointError, match=message):
            set_own_arrays(Holder(**attributes), arrays)

    @pytest.mark.parametrize(
        "inside", [lambda: Box(linear(0)), lambda: [Box({"deep": Box(jnp.ones(2))})], lambda: {1: Box(Torch()), "a": 2}]
    )
    def test_state_that_would_be_lost_is_refused(self, inside):
        message = r"would be lost(.|\n)*attribute 'helper'(.|\n)*custom_state_attributes"
        with pytest.raises(CheckpointError, match=message):
            own_arrays(Holder(helper=inside()))
        assert own_arrays(Apart(helper=inside())) == {}


class Holder:
    label = "policy 'x', class Holder"

    def __init__(self, **attributes):
        vars(self).update(attributes)


class Apart(Holder):
    custom_state_attributes = frozenset({"helper"})


class Box:
    def __init__(self, inside):
        self.inside = inside


class Torch:
    def state_dict(self): ...

    def load_state_dict(self, state): ...


def linear(seed):
    return nnx.Linear(2, 3, rngs=nnx.Rngs(seed))
