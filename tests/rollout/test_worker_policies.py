"""Policies of a `RolloutWorker`: specs and spaces."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax import (
    ConfigError,
    MultiAgentBatch,
    MultiAgentEnv,
    PGConfig,
    Policy,
    PolicyError,
    PolicySpec,
    PPOConfig,
    RolloutWorker,
    SampleBatch,
    SpaceError,
)
from rollax.algorithms.dqn import DQN, Rainbow, RainbowConfig
from rollax.algorithms.pg import PG
from rollax.algorithms.ppo import PPO
from rollax.models.catalog import make_model
from rollax.models.config import ModelConfig
from rollax.rollout.filters import MeanStdFilter, NoFilter
from rollax.rollout.messages import Update
from rollax.rollout.policy_mapping import policy_mapping, space_of_agents
from tests.env.refused import refused
from tests.env.worlds import FixedSteps
from tests.rollout.worlds import ACTION_SPACE, ALL, OBS_SPACE, TOGETHER, Encode, Line, Weighted, a_by_x, scripted

IDS = ["one", "two"]


class TestPolicies:
    def test_one_policy_returns_a_sample_batch_and_several_a_multi_agent_batch(self):
        env, config = scripted(TOGETHER), {"rollout_fragment_length": 4}
        one = RolloutWorker(env, Encode, config=config).sample()
        assert isinstance(one, SampleBatch)
        assert (one.env_steps, len(one)) == (4, 8)
        two = RolloutWorker(env, {"x": Encode, "y": Encode}, policy_mapping_fn=a_by_x, config=config).sample()
        assert isinstance(two, MultiAgentBatch)
        assert (two.env_steps, two.agent_steps, set(two)) == (4, 8, {"x", "y"})
        assert set(two["x"]["agent_id"]) == {"a"}

    @pytest.mark.parametrize(
        "spec",
        [
            Encode,
            PolicySpec(Encode),
            (Encode,),
            (Encode, OBS_SPACE, ACTION_SPACE, {"gamma": 0.85}),
            (None, None, None, None),
            PolicySpec(config={"gamma": 0.85}),
            None,
        ],
    )
    def test_every_kind_of_spec(self, spec):
        policy = RolloutWorker(Line, {"p": spec}, default_policy_class=Encode).get_policy("p")
        assert isinstance(policy, Encode)
        assert policy.name == "p"
        changed = isinstance(spec, tuple) and len(spec) == 4 and spec[3]
        assert policy.config.gamma == (0.85 if changed else 0.99)
        assert (policy.observation_space, policy.action_space) == (OBS_SPACE, ACTION_SPACE)

    def test_an_algorithm_that_the_trainers_derives_from_has_its_own_defaults(self):
        class Own(RainbowConfig):
            """A config of the user, for the same algorithm."""

        config = Own(gamma=0.5, n_step=2, model=ModelConfig(fcnet_hiddens=(2,)))
        specs = {"rainbow": None, "same": Rainbow, "dqn": DQN}
        settings: dict = {"policy_mapping_fn": lambda _: "dqn", "default_policy_class": Rainbow, "config": config}
        found = {name: policy.config for name, policy in RolloutWorker(Line, specs, **settings).policies.items()}
        wanted = {"rainbow": (0.5, 2, True), "same": (0.5, 2, True), "dqn": (0.5, 1, False)}
        assert {name: (own.gamma, own.n_step, own.noisy) for name, own in found.items()} == wanted

    @pytest.mark.parametrize("spec", [3, "Encode", Encode(OBS_SPACE, ACTION_SPACE), (Line,), (), (Encode, 1, 2, 3, 4)])
    def test_invalid_specs(self, spec):
        refused(PolicyError, RolloutWorker, Line, {"p": spec}, says="policies['p']")

    @pytest.mark.parametrize(
        ("specs", "config", "error", "says"),
        [
            ({}, {}, PolicyError, "No policy is given"),
            ({"p": None}, {}, PolicyError, "has no class"),
            *[
                ({"p": (Encode, *given)}, {}, PolicyError, "is not the environment's(.|\n)*'p'")
                for given in (
                    (spaces.Box(-1, 1, (4,), np.float32), None),
                    (None, spaces.Discrete(12)),
                    (spaces.Discrete(4), None),
                )
            ],
            (Encode, {"action_space": spaces.Discrete(3)}, PolicyError, "action_space is not the environment's"),
            ({"p": (Encode, spaces.Dict({}))}, {}, SpaceError, "no elements"),
            (
                {"x": Encode},
                {"multiagent": {"policies": {"x": None}, "policies_to_train": ["y"]}},
                ConfigError,
                "policies_to_train",
            ),
        ],
    )
    def test_refused(self, specs, config, error, says):
        with pytest.raises(error, match=says):
            RolloutWorker(Line, specs, config=config)

    def test_actions_with_their_parts_in_another_order_are_refused(self):
        """Masks, and the outputs of models, follow the order of the environment's parts."""
        parts = [("gear", spaces.Discrete(2)), ("arm", spaces.Discrete(3))]
        first, second = spaces.Dict(parts), spaces.Dict(parts[::-1])

        class Ordered(Line):
            action_space = first

        refused(PolicyError, RolloutWorker, lambda context: Ordered(), {"p": (Encode, None, second)}, says="policy 'p'")

        class Two(MultiAgentEnv):
            observation_spaces = dict.fromkeys("ab", spaces.Discrete(4))
            action_spaces = {"a": first, "b": second}
            possible_agents = ("a", "b")

        refused(PolicyError, RolloutWorker, lambda context: Two(), Encode, says="agents of one policy")

    @pytest.mark.parametrize("others", [0, 1])
    def test_a_policy_that_cannot_be_made(self, others):
        class Broken(Encode):
            def __init__(self, *args):
                raise ValueError("no table")

        specs = {**dict.fromkeys(["fine"][:others], Encode), "broken": Broken}
        with pytest.raises(ValueError, match="no table") as caught:
            RolloutWorker(Line, specs, policy_mapping_fn=lambda agent_id: "broken")
        notes = getattr(caught.value, "__notes__", [])
        assert notes == ["Raised while policy 'broken', a Broken, was made."][:others]

    def test_a_wrong_key_in_a_spec_names_the_policy(self):
        specs = {"fine": PG, "broken": PolicySpec(PG, config={"lrr": 1.0})}
        with pytest.raises(ConfigError, match="Unknown config key 'lrr'") as caught:
            RolloutWorker(Line, specs, policy_mapping_fn=lambda agent_id: "broken")
        assert caught.value.__notes__ == ["Raised while policy 'broken', a PG, was made."]

    def test_convolutions_need_an_image(self):
        config = PPOConfig(model={"conv_filters": [[4, 2, 1]]})  # pyright: ignore[reportArgumentType]
        small, image = spaces.Box(0, 1, (4, 4, 3)), spaces.Dict({"a": spaces.Box(0, 1, (5, 5, 3))})

        def make(*observation_spaces):
            specs = {str(n): (PPO, space, ACTION_SPACE, {}) for n, space in enumerate(observation_spaces)}
            RolloutWorker(Line, specs, policy_mapping_fn=lambda _: "0", config=config, samples=False)

        says = "conv_filters has no effect: no observation is an image... policy '0'...Box((4, 4, 3), float32)"
        refused(ConfigError, make, small, says=says)
        make(small, image)

    def test_sequences_need_memory(self):
        class Remembers(PPO):
            """Its memory is that of a model which the config does not name."""

            def make_model(self, rngs):
                sizes = ModelConfig(fcnet_hiddens=(4,), use_lstm=True, lstm_cell_size=4)
                return make_model(OBS_SPACE, ACTION_SPACE, self.distribution.num_inputs, sizes, rngs)

        def make(*policy_classes, **model):
            specs = {str(n): (each, OBS_SPACE, ACTION_SPACE, {}) for n, each in enumerate(policy_classes)}
            config = PPOConfig(model={"max_seq_len": 5, **model})  # pyright: ignore[reportArgumentType]
            return RolloutWorker(Line, specs, policy_mapping_fn=lambda _: "0", config=config, samples=False)

        says = "max_seq_len has no effect: no policy has a model with memory... policy '0'...5...initial_state"
        refused(ConfigError, make, PPO, says=says)
        make(PPO, use_gru=True)
        for classes in ((PPO, Remembers), (Remembers, PPO)):
            policies = make(*classes).policies
            assert sorted(policy.memory.max_seq_len for policy in policies.values()) == [1, 5]

    def test_policies_define_the_spaces_if_the_environment_has_none(self):
        class Differing(FixedSteps):
            observation_space = action_space = None

        class Middle(Policy):
            def compute_actions(self, obs_batch):  # type: ignore[override]
                return [self.action_space.sample() for _ in range(len(obs_batch))], [], {}

        obs = {"small": 2, "large": np.ones((3, 2), np.float32)}
        env = Differing((obs, {"small": 1.0, "large": 2.0}, {ALL: False}, {ALL: False}, {}), first=(obs, {}))
        specs = {
            "small": (Middle, spaces.Discrete(4), spaces.Discrete(2)),
            "large": (Middle, spaces.Box(0, 1, (3, 2), np.float32), spaces.Box(-1, 1, (2,), np.float32)),
        }
        worker = RolloutWorker(
            lambda _: env,
            specs,
            policy_mapping_fn=lambda agent_id: agent_id,
            config={"rollout_fragment_length": 5, "observation_filter": "MeanStdFilter"},
        )
        batch = worker.sample()
        assert batch["small"]["obs"].tolist() == [2] * 5
        assert batch["large"]["obs"].shape == (5, 3, 2)
        assert {(type(each["small"]), np.shape(each["large"])) for each in env.got} == {(int, (2,))}
        refused(SpaceError, RolloutWorker, lambda _: env, Middle, says="This is not a Gymnasium space")

    def test_a_policy_has_the_spaces_of_its_agents(self):
        class Three(MultiAgentEnv):
            observation_spaces = {"a": spaces.Discrete(4), "b": spaces.Discrete(4), "c": spaces.Discrete(5)}
            action_spaces = {"a": spaces.Discrete(2), "b": spaces.Discrete(2), "c": spaces.Discrete(3)}
            possible_agents = ("a", "b", "c")

        def make(mapping):
            return RolloutWorker(lambda _: Three(), {"x": Encode, "y": Encode}, policy_mapping_fn=mapping)

        worker = make(lambda agent_id: "y" if agent_id == "c" else "x")
        assert worker.get_policy("x").observation_space == spaces.Discrete(4)
        assert worker.get_policy("y").action_space == spaces.Discrete(3)
        with pytest.raises(PolicyError, match="The agents of one policy have different spaces"):
            make(lambda agent_id: "y" if agent_id == "a" else "x")
        with pytest.raises(SpaceError, match="policy 'x', .*\n.*: *not known before an episode runs"):
            make(lambda agent_id, episode: episode.policies["a"])
        refused(SpaceError, make, lambda agent_id: "y", says="policy 'x', ...'c': 'y'...PolicySpec(observation_space=")
        with pytest.raises(PolicyError, match=r"unknown policy.*\n.*agent 'b'\n.*other"):
            make(lambda agent_id: "y" if agent_id == "a" else "other")

    def test_a_policy_of_another_algorithm_gets_the_common_keys(self):
        config = PPOConfig(gamma=0.5, lr=0.125, clip_param=0.3, train_batch_size=256, seed=3)
        specs = {"ours": None, "theirs": (PG, None, None, {"batch_mode": "truncate_episodes", "lr": 0.25})}
        worker = RolloutWorker(Line, specs, policy_mapping_fn=lambda _: "ours", config=config, default_policy_class=PPO)
        theirs = worker.get_policy("theirs").config
        assert type(theirs) is PGConfig
        assert (theirs.gamma, theirs.lr, theirs.batch_mode) == (0.5, 0.25, "truncate_episodes")
        assert worker.get_policy("ours").config.lr == 0.125
        # A PPO policy that only acts accepts batches smaller than its minibatches.
        RolloutWorker(Line, {"x": PPO}, config=PGConfig(train_batch_size=50), default_policy_class=PG)
        with pytest.raises(ConfigError, match="clip_param"):
            RolloutWorker(Line, {"x": (PG, None, None, {"clip_param": 0.1})}, config=config)

    def test_a_policys_own_filter_and_action_map(self):
        changes = {"observation_filter": "NoFilter", "clip_actions": False, "normalize_actions": False}
        worker = RolloutWorker(
            scripted(TOGETHER),
            {"x": Encode, "y": PolicySpec(Encode, config=changes)},
            policy_mapping_fn=lambda _: "x",
            config={"observation_filter": "MeanStdFilter"},
        )
        assert isinstance(worker.runners["x"].filter, MeanStdFilter)
        assert isinstance(worker.runners["y"].filter, NoFilter)

    @pytest.mark.parametrize(("worker_index", "num_workers"), [(0, 0), (1, 1), (1, 2)])
    def test_the_filter_of_a_policy_that_does_not_learn_is_not_changed(self, worker_index, num_workers):
        multiagent = {"policies": {"x": Encode, "y": Encode}, "policies_to_train": ["x"]}
        worker = RolloutWorker(
            scripted(TOGETHER),
            multiagent["policies"],
            policy_mapping_fn=a_by_x,
            config={
                "observation_filter": "MeanStdFilter",
                "rollout_fragment_length": 5,
                "multiagent": {**multiagent, "policy_mapping_fn": lambda agent: "x"},
            },
            worker_index=worker_index,
            num_workers=num_workers,
        )
        rollout = worker.rollout()
        assert [worker.get_filters()[name]["count"] > 0 for name in "xy"] == [True, False]
        assert list(rollout.filters) == ["x"]
        # The driver may set it at any time.
        state = worker.get_filters()["x"]
        for version in (1, 2):
            worker.apply_update(Update(version, 0, {}, {"y": {**state, "count": np.array(10.0 * version)}}))
            assert worker.get_filters()["y"]["count"] == 10 * version
            worker.sample()
        assert worker.get_filters()["y"]["count"] == 20

    def test_get_policy_names_the_policies(self):
        refused(PolicyError, RolloutWorker(Line, {"x": Encode}).get_policy, says="['x']")

    def test_foreach_policy(self):
        policies = {"x": Encode, "y": Weighted}
        worker = RolloutWorker(scripted(TOGETHER), policies, policy_mapping_fn=a_by_x)
        assert worker.foreach_policy(lambda policy, policy_id: (policy_id, type(policy))) == [*policies.items()]


KNOWN = {"a": spaces.Box(-1, 1, (4,), np.float32)}


class OneSpaceMissing(MultiAgentEnv):
    """Declares two agents, and the spaces of only one."""

    possible_agents = ("a", "b")
    observation_spaces = KNOWN
    action_spaces = {"a": spaces.Discrete(11)}


def test_an_error_of_the_mapping_where_spaces_differ():
    def broken(agent):
        raise NameError(agent)

    by_agent = {"a": KNOWN["a"], "b": spaces.Box(-1, 1, (2,), np.float32)}
    mapping = policy_mapping(broken, IDS)
    says = "The policy mapping raised NameError...agent 'a'"
    refused(PolicyError, space_of_agents, by_agent, "one", mapping, "observation_space", says=says)
    reads = policy_mapping(lambda agent, episode: IDS[episode.worker_index], IDS)
    says = "not known before an episode runs"
    refused(SpaceError, space_of_agents, by_agent, "one", reads, "observation_space", says=says)


def test_a_missing_space():
    says = "An agent has no observation_space...agent 'b' of policy...got:      spaces of ['a']"
    refused(SpaceError, RolloutWorker, lambda context: OneSpaceMissing(), Encode, says=says)
    mapping = policy_mapping(lambda agent: {"a": "one", "b": "two"}[agent], IDS)
    assert space_of_agents(KNOWN, "one", mapping, "observation_space", "ab") == KNOWN["a"]
    says = "agent 'b' of policy 'two'"
    refused(SpaceError, space_of_agents, KNOWN, "two", mapping, "observation_space", "ab", says=says)
    assert space_of_agents({}, "two", mapping, "observation_space", "ab") is None
    reads_episode = policy_mapping(lambda agent, episode: episode.x, IDS)
    says = "has no space...not known before an episode runs"
    refused(SpaceError, space_of_agents, KNOWN, "one", reads_episode, "space", "ab", says=says)
