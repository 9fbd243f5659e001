"""Variables shared between policies: one set of arrays, an optimizer for each policy, checkpoints, refused configs."""

import json

import numpy as np
import pytest
from gymnasium import spaces
from safetensors.numpy import load_file

from rollax import MultiAgentEnv, Policy, PolicySpec, PPOTrainer, load_policy
from rollax.algorithms.ppo import PPO, PPOConfig
from rollax.config.multiagent import SharedParts
from rollax.errors import ConfigError, NonFiniteError, PolicyError
from rollax.policy.shared_variables import SharedVariables
from tests.interrupting import Interrupts
from tests.policy.small_ppo import SEEN, Stateful, experience, seen

SMALL = {"model": {"fcnet_hiddens": (8,)}, "lr": 1e-2, "sgd_minibatch_size": 8, "num_sgd_iter": 2}
TRUNK = ["policy_trunk.mlp.layers.0.bias", "policy_trunk.mlp.layers.0.kernel"]


def policy(actions: int = 2, seed: int = 0, space: spaces.Space = SEEN, **config) -> PPO:
    return PPO.make_policy(space, spaces.Discrete(actions), {**SMALL, "seed": seed, **config})


@pytest.fixture
def three() -> dict[str, PPO]:
    """`a` and `b` share their policy trunk, with heads of different widths; `c` shares nothing."""
    policies = {"a": policy(2), "b": policy(4, seed=1), "c": policy(2, seed=2)}
    groups = {"trunk": SharedParts(parts=("policy_trunk",), policies=("a", "b"))}
    SharedVariables(groups, policies)
    return policies


def logits(acting: PPO) -> np.ndarray:
    return acting.compute_actions(seen(5), explore=False)[2]["action_dist_inputs"]


def assert_shared(a: PPO, b: PPO, names=TRUNK) -> None:
    for name in names:
        assert a.params[name] is b.params[name]
        assert not a.params[name].is_deleted()
    assert all(a.params[name] is not b.params[name] for name in a.params if name not in names)


class TestArrays:
    def test_initial_values_are_those_of_the_first_policy(self, three):
        assert_shared(three["a"], three["b"])
        np.testing.assert_array_equal(three["b"].params[TRUNK[1]], policy(2).params[TRUNK[1]])
        head = "policy_head.kernel"
        np.testing.assert_array_equal(three["b"].params[head], policy(4, 1).params[head])

    @pytest.mark.long
    @pytest.mark.parametrize(("learner", "other"), [("a", "b"), ("b", "a")])
    def test_an_interrupted_update_reaches_the_others_before_they_learn(self, three, learner, other):
        one, interrupts, line = three[learner], Interrupts("policy/shared_variables.py"), 0
        rows = experience(one, 16)
        while interrupts.at(line, lambda: one.learn_on_batch(rows)):
            learned = one.params[TRUNK[1]]
            three[other].on_new_variables()  # the first step of learning
            assert three[other].params[TRUNK[1]] is learned
            assert_shared(three["a"], three["b"])
            line += 1
        assert line > 5

    @pytest.mark.long
    @pytest.mark.parametrize(("learner", "other"), [("a", "b"), ("b", "a")])
    def test_after_learning(self, three, learner, other):
        before, c_before = logits(three[other]), logits(three["c"])
        three[learner].learn_on_batch(experience(three[learner], 16))
        assert_shared(three["a"], three["b"])
        assert np.abs(logits(three[other]) - before).max() > 1e-5
        np.testing.assert_array_equal(logits(three["c"]), c_before)

    def test_after_applied_gradients(self, three):
        gradients, _ = three["a"].compute_gradients(experience(three["a"], 16))
        before = logits(three["b"])
        three["a"].apply_gradients(gradients)
        assert_shared(three["a"], three["b"])
        assert np.abs(logits(three["b"]) - before).max() > 1e-5

    def test_after_new_weights_and_state(self, three):
        three["b"].set_weights(policy(4, seed=7).get_weights())
        assert_shared(three["a"], three["b"])
        np.testing.assert_array_equal(three["a"].params[TRUNK[1]], policy(4, seed=7).params[TRUNK[1]])
        three["a"].set_state(policy(2, seed=8).get_state())
        assert_shared(three["a"], three["b"])
        np.testing.assert_array_equal(three["b"].params[TRUNK[1]], policy(2, seed=8).params[TRUNK[1]])

    @pytest.mark.long
    def test_after_an_update_that_stops(self, three):
        batch = experience(three["a"], 16)
        batch["advantages"][3] = np.nan
        with pytest.raises(NonFiniteError):
            three["a"].learn_on_batch(batch)
        assert_shared(three["a"], three["b"])
        assert np.isfinite(logits(three["b"])).all()

    def test_each_has_its_own_optimizer(self, three):
        untouched = {name: value.copy() for name, value in three["b"].learner.optimizer_arrays().items()}
        three["a"].learn_on_batch(experience(three["a"], 16))
        np.testing.assert_equal(three["b"].learner.optimizer_arrays(), untouched)
        assert three["a"].learner.num_updates > three["b"].learner.num_updates == 0
        moments = three["a"].learner.optimizer_arrays()
        assert any(TRUNK[1] in name and np.abs(value).max() > 0 for name, value in moments.items())

    def test_two_groups(self):
        policies = {key: policy(2, seed) for seed, key in enumerate("abcd")}
        SharedVariables(
            {
                "trunks": SharedParts(parts=("policy_trunk",), policies=("a", "b", "c")),
                "values": SharedParts(parts=("value_trunk", "value_head.kernel"), policies=("b", "d")),
            },
            policies,
        )
        policies["b"].learn_on_batch(experience(policies["b"], 16))
        values = [name for name in policies["b"].params if name.startswith("value_trunk")] + ["value_head.kernel"]
        assert_shared(policies["b"], policies["d"], values)
        assert_shared(policies["b"], policies["a"])
        assert_shared(policies["b"], policies["c"])

    @pytest.mark.long
    def test_state_that_is_not_trained_is_shared(self):
        policies = {key: policy(2, seed, model={"custom_model": Stateful}) for seed, key in enumerate("ab")}
        SharedVariables({"all of it": SharedParts(parts=("norm",))}, policies)
        policies["a"].learn_on_batch(experience(policies["a"], 16))
        assert policies["b"].extra["norm.mean"] is policies["a"].extra["norm.mean"]
        assert np.abs(policies["b"].extra["norm.mean"]).max() > 0

    @pytest.mark.long
    @pytest.mark.usefixtures("cleared_cache")
    def test_acting_after_updates_of_others_compiles_nothing(self, three):
        for _ in range(3):
            for each in (three["a"], three["b"]):
                each.learn_on_batch(experience(each, 16))
        counts = [three[key].compilations() for key in "ab"]
        for each in (three["a"], three["b"]):
            each.learn_on_batch(experience(each, 16))
        assert [three[key].compilations() for key in "ab"] == counts


class TestRefused:
    def check(self, parts, policies=None, among=None, error=ConfigError) -> str:
        groups = {"trunk": SharedParts(parts=parts, policies=policies)}
        with pytest.raises(error) as refusal:
            SharedVariables(groups, among or {"left": policy(2), "right": policy(3, 1)})
        return str(refusal.value)

    @pytest.mark.parametrize(
        ("part", "policies", "named"),
        [
            ("policy_trunk", ("left", "rigth"), ["'multiagent.shared_variables.trunk', policies", "'right'"]),
            ("policy_trunk", ("left", "left"), ["at least two"]),
            ("policy_trunk.mpl", None, ["policy_trunk.mlp", "'left'"]),
            ("policy_tru", None, ["policy_trunk"]),  # part of a name does not match
            ("policy_head.kernel", None, ["float32[8, 2]", "float32[8, 3]"]),
        ],
        ids=["unknown policy", "one policy", "unknown part", "part of a name", "other shapes"],
    )
    def test_parts_and_policies(self, part, policies, named):
        text = self.check((part,), policies)
        assert all(words in text.replace(f"'{part}'", "") for words in named), text

    def test_other_variables(self):
        deeper = policy(2, model={"fcnet_hiddens": (8, 8)})
        text = self.check(("policy_trunk",), among={"left": policy(2), "right": deeper})
        assert "policy_trunk.mlp.layers.1" in text
        assert "no such variable" in text

    def test_shared_twice(self):
        policies = {key: policy(2, seed) for seed, key in enumerate("abc")}
        groups = {
            "one": SharedParts(parts=("policy_trunk",), policies=("a", "b")),
            "two": SharedParts(parts=("policy_trunk.mlp",), policies=("b", "c")),
        }
        with pytest.raises(ConfigError, match=r"in two entries(.|\n)*of policy 'b', in 'one' and in 'two'"):
            SharedVariables(groups, policies)

    def test_a_policy_without_named_variables(self):
        class Own(Policy):
            def compute_actions(self, obs_batch):  # type: ignore[override]
                return [0] * len(obs_batch), [], {}

        own = Own(SEEN, spaces.Discrete(2))
        assert "Own" in self.check(("policy_trunk",), among={"left": policy(2), "own": own}, error=PolicyError)

    def test_nothing_to_share(self):
        with pytest.raises(ConfigError, match="shared_variables"):
            PPOConfig(multiagent={"shared_variables": {"trunk": {"parts": []}}})
        with pytest.raises(ConfigError, match=r"'multiagent.shared_variables.trunk.polices'(.|\n)*'policies'"):
            PPOConfig(multiagent={"shared_variables": {"trunk": {"parts": ["x"], "polices": ["a", "b"]}}})


class Pair(MultiAgentEnv):
    """Two agents that observe noise; episodes of four steps."""

    observation_space = SEEN
    possible_agents = ("a", "b")

    def __init__(self, env_config: dict) -> None:
        self.rng = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        self.rng, self.steps = np.random.default_rng(seed), 0
        return self._seen(), {}

    def step(self, actions):
        self.steps += 1
        return self._seen(), {"a": 1.0, "b": -1.0}, {"__all__": self.steps == 4}, {"__all__": False}, {}

    def _seen(self):
        return {agent: self.rng.uniform(-1, 1, 3).astype(np.float32) for agent in "ab"}


MULTIAGENT = {
    "policies": {"a": PolicySpec(action_space=spaces.Discrete(2)), "b": PolicySpec(action_space=spaces.Discrete(3))},
    "policy_mapping_fn": lambda agent_id: agent_id,
    "shared_variables": {"trunk": {"parts": ["policy_trunk"]}},
}
CONFIG = {**SMALL, "train_batch_size": 32, "seed": 0, "multiagent": MULTIAGENT}


class TestInTraining:
    @pytest.mark.long
    def test_checkpoint_holds_them_once(self, tmp_path):
        with PPOTrainer(Pair, CONFIG) as trainer:
            trainer.train()
            assert_shared(trainer.get_policy("a"), trainer.get_policy("b"))
            path = trainer.save(tmp_path)
            expected = trainer.get_policy("b").get_weights()
            result = trainer.train()
        names = [name for name in load_file(path / "arrays.safetensors") if "/weights/policy_trunk" in name]
        assert len(names) == len(TRUNK)
        assert all("/policies/a/" in name for name in names)
        with PPOTrainer(Pair, CONFIG) as again:
            again.restore(path)
            assert_shared(again.get_policy("a"), again.get_policy("b"))
            np.testing.assert_equal(again.get_policy("b").get_weights(), expected)
            again.train()
            assert_shared(again.get_policy("a"), again.get_policy("b"))
        assert set(result["info"]["learner"]) == {"a", "b"}
        alone = load_policy(path, "b").policy
        np.testing.assert_equal(alone.get_weights(), expected)

    def test_the_config_is_stored(self, tmp_path):
        with PPOTrainer(Pair, CONFIG) as trainer:
            path = trainer.save(tmp_path)
        stored = json.loads((path / "about.json").read_text())["config"]["multiagent"]["shared_variables"]
        assert stored == {"trunk": {"parts": ["policy_trunk"], "policies": None}}
        config = PPOConfig.from_json(PPOConfig(**CONFIG).to_json(), trust_code=True)
        assert config.multiagent.shared_variables == PPOConfig(**CONFIG).multiagent.shared_variables

    def test_weights_are_sent_once(self):
        worker = PPOTrainer(Pair, CONFIG).worker
        weights = worker.get_weights()
        assert all((weights["a"][name] is weights["b"][name]) == (name in TRUNK) for name in weights["a"])
        other = worker.policies["b"].params
        worker.set_weights({"a": {name: value + 1 for name, value in weights["a"].items()}})
        np.testing.assert_array_equal(worker.policies["b"].params[TRUNK[0]], other[TRUNK[0]] + 1)

    def test_weights_that_contradict_each_other_are_refused(self):
        message = rf"different values of it(.|\n)*variable '{TRUNK[1]}' of policies 'a' and 'b'(.|\n)*1 different .* 24"
        with PPOTrainer(Pair, CONFIG) as trainer:
            before, weights = trainer.get_weights(), trainer.get_weights()
            weights["b"][TRUNK[1]] = weights["b"][TRUNK[1]].copy()
            weights["b"][TRUNK[1]][0, 0] += 1
            weights["a"]["policy_head.bias"] = weights["a"]["policy_head.bias"] + 1
            with pytest.raises(PolicyError, match=message):
                trainer.set_weights(weights)
            np.testing.assert_equal(trainer.get_weights(), before)
            weights["b"][TRUNK[1]][0, 0] = np.nan
            weights["a"][TRUNK[1]] = weights["b"][TRUNK[1]].copy()  # equal, also in the NaN, but not the same array
            trainer.set_weights(weights)
            np.testing.assert_equal(trainer.get_weights(), weights)
            trainer.set_weights({"b": before["b"]})  # of one policy: it changes both
            np.testing.assert_array_equal(trainer.get_weights()["a"][TRUNK[1]], before["a"][TRUNK[1]])
            with pytest.raises(PolicyError, match="wrong shape"):
                trainer.set_weights({**before, "b": {**before["b"], TRUNK[1]: np.zeros(3)}})

    def test_a_policy_that_does_not_learn_acts_with_updated_variables(self):
        with PPOTrainer(Pair, {**CONFIG, "multiagent": {**MULTIAGENT, "policies_to_train": ["a"]}}) as trainer:
            before = trainer.get_policy("b").get_weights()
            trainer.train()
            after = trainer.get_policy("b").get_weights()
        assert {name for name in before if not np.array_equal(before[name], after[name])} == set(TRUNK)
