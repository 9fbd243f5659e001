"""Tables of the documentation that are not written by a program agree with the code."""

import inspect
import re

import numpy as np
import pytest

from rollax import (
    A2CConfig,
    Callbacks,
    ConfigError,
    DDPGConfig,
    DQNConfig,
    PPOConfig,
    RolloutWorker,
    SACConfig,
    SampleBatch,
    TD3Config,
    UniformReplay,
)
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.config import TrainerConfig
from rollax.config.replay_groups import ReplayFields
from rollax.rollout.episode import Episode
from rollax.search.config import SearchFields
from tests.algorithms.envs import TwoAgents
from tests.test_docs import REPOSITORY, table

DOCS = REPOSITORY / "docs"
ALWAYS = {"terminateds", "truncateds", "eps_id"}


ENVIRONMENTS = {
    **dict.fromkeys(
        ("SAC", "FlashSAC", "TQC", "CrossQ", "TD7", "TD3", "DDPG", "APEX_DDPG", "CQL", "TD3BC"), "Pendulum-v1"
    ),
    **dict.fromkeys(("QMIX", "VDN"), lambda _: TwoAgents().with_agent_groups({"pair": ["left", "right"]})),
}


def names(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def columns_in_docs() -> dict[str, list[set[str]]]:
    """Algorithm -> the columns that its policy asks for, that postprocessing adds, and that its loss reads."""
    rows = table(DOCS / "batches.md", "| algorithm | sampled |")
    return {name: [names(cell) for cell in row[1:]] for row in rows for name in row[0].split(", ")}


@pytest.mark.long
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_columns_that_are_sampled_and_added_and_read(name):
    trainer_class = get_trainer_class(name)
    fragments = {} if issubclass(trainer_class.config_class, SearchFields) else {"rollout_fragment_length": 8}
    config = trainer_class.config_class(**fragments, seed=0)
    worker = RolloutWorker(ENVIRONMENTS.get(name, "CartPole-v1"), trainer_class.policy_class, config=config)
    policy = worker.get_policy()
    fragments, _ = worker.sampler.sample()
    sampled = set(fragments["default_policy"])
    processed = policy.postprocess_rows(fragments["default_policy"])
    learned = processed
    if isinstance(config, ReplayFields):
        buffer = UniformReplay(64)
        buffer.add(processed)
        learned = buffer.sample(2, np.random.default_rng(0))
    asked, added, read = columns_in_docs()[name]
    assert asked == policy.algorithm.samples
    assert asked | ALWAYS <= sampled
    assert set(processed) - sampled == added
    assert set(policy.algorithm.loss_columns(learned, policy.learning_rng)) == read


def test_every_column_of_a_batch_is_described():
    content = (DOCS / "batches.md").read_text(encoding="utf-8")
    described = {name for cell in re.findall(r"^\| (`.*?) \|", content, re.MULTILINE) for name in names(cell)}
    constants = {value for name, value in vars(SampleBatch).items() if name.isupper()}
    # What only goes from one part of the library to another.
    assert constants - {"seq_lens", "td_error"} <= described


def test_the_attributes_of_an_episode():
    rows = table(DOCS / "callbacks.md", "| attribute |")
    described = {match for row in rows for match in re.findall(r"^`(\w+)", row[0])}
    episode = Episode(0, 0, {"reward": np.zeros(1), "length": np.zeros(1, np.int64)})
    own = {"detach", "noted_metrics"}  # for the table that holds it
    assert described == {name for name in dir(episode) if not name.startswith("_")} - own


def test_the_methods_of_callbacks():
    rows = table(DOCS / "callbacks.md", "| method | called |")
    described = {next(iter(names(row[0]))): names(row[2]) for row in rows}
    methods = {name: method for name, method in vars(Callbacks).items() if inspect.isfunction(method)}
    assert described == {name: set(inspect.signature(m).parameters) - {"self"} for name, m in methods.items()}


ON_POLICY, OFF_POLICY = (PPOConfig, A2CConfig), (DQNConfig, SACConfig, TD3Config, DDPGConfig)


@pytest.mark.parametrize(("title", "configs"), [("PPO and A2C:", ON_POLICY), ("DQN, SAC, TD3, DDPG:", OFF_POLICY)])
def test_the_keys_of_other_libraries_are_those_that_errors_name(title, configs):
    page = DOCS / "coming-from-sb3-and-cleanrl.md"
    _, _, section = page.read_text(encoding="utf-8").partition(f"\n{title}\n")
    rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", section.partition("\n\n")[0], re.MULTILINE)
    fields = {name for config in configs for name in config.model_fields} | {"lambda"}
    wrong = []
    for theirs, others, ours in rows:
        keys = set(re.findall(r"\w+", ours)) & fields
        for name in (names(theirs) | names(others)) - fields if keys else ():
            hints = [hint(config, name) for config in configs]
            if not any(hint is None or keys & set(re.findall(r"\w+", hint)) for hint in hints):
                wrong.append((name, ours, hints))
    assert len(rows) > 15
    assert wrong == []


def hint(config: type[TrainerConfig], name: str) -> str | None:
    """What is said of a key that a config does not have, a list of all keys left out; None where it has it."""
    try:
        config(**{name: 1})
    except ConfigError as error:
        return re.split("use one of:|similar keys:", str(error))[0]
    return None
