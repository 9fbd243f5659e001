"""Videos of evaluation episodes."""

from pathlib import Path

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollax import EnvContext, PPOTrainer, record_env, to_base_env
from rollax.errors import ConfigError, EnvError
from tests.env.recording.films import WHOLE, Film, watch
from tests.env.recording.test_recording import FilmAgents

CONFIG = {"train_batch_size": 8, "sgd_minibatch_size": 8, "num_envs_per_worker": 2, "model": {"fcnet_hiddens": (4,)}}


@pytest.mark.parametrize("env", [Film, FilmAgents])
def test_one_video_for_each_episode(env, tmp_path):
    with PPOTrainer(env, CONFIG) as trainer:
        result = trainer.evaluate(3, record_dir=tmp_path / "films")
    assert result["episode_rewards"] == [3, 3, 3]
    assert result["videos"] == [str(tmp_path / "films" / f"episode_00000{n}.mp4") for n in (0, 1, 2)]
    assert sorted(map(str, (tmp_path / "films").iterdir())) == result["videos"]
    for path in result["videos"]:
        assert watch(path) == (WHOLE, (50, 32), 7)


def test_a_vector_env_records_the_episodes_that_count(tmp_path):
    def make(context):
        return SyncVectorEnv([lambda: Film(context)] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)

    with PPOTrainer(make, CONFIG) as trainer:
        result = trainer.evaluate(4, record_dir=tmp_path)
    names = ["env_0_episode_000000", "env_0_episode_000001", "env_1_episode_000000", "env_2_episode_000000"]
    assert [Path(path).stem for path in result["videos"]] == names
    assert result["episodes"] == 4


def test_earlier_videos_are_replaced_with_one_warning(tmp_path, caplog):
    with PPOTrainer(Film, CONFIG) as trainer:
        first = trainer.evaluate(2, record_dir=tmp_path)["videos"]
        assert caplog.messages == []
        assert trainer.evaluate(2, record_dir=tmp_path)["videos"] == first
    assert caplog.messages == [f"{first[0]} and other videos overwrite earlier ones of the same name."]


def test_agents_of_an_environment_that_lists_them(tmp_path):
    """As a centralized critic requires."""

    class Listed(FilmAgents):
        possible_agents = ("a",)

    recorded = record_env(Listed, tmp_path)(EnvContext())
    assert recorded.possible_agents == to_base_env(Listed(EnvContext())).possible_agents
    assert recorded.possible_agents is not None


@pytest.mark.long
def test_evaluation_does_not_change_videos_of_training(tmp_path):
    recorded = record_env(Film, tmp_path / "training", episodes=lambda episode: episode == 1)
    with PPOTrainer(recorded, {**CONFIG, "num_envs_per_worker": 1}) as trainer:
        trainer.train()
        (path,) = (tmp_path / "training").iterdir()
        before = path.stat().st_mtime_ns
        trainer.evaluate(2)
        trainer.evaluate(2, record_dir=tmp_path / "greedy")
        assert [(p.name, p.stat().st_mtime_ns) for p in (tmp_path / "training").iterdir()] == [(path.name, before)]
        assert len(list((tmp_path / "greedy").iterdir())) == 2


@pytest.mark.long
def test_an_atari_game(tmp_path):
    pytest.importorskip("ale_py")
    env_config = {"max_num_frames_per_episode": 40, "screen_size": 42, "noop_max": 0, "fire_reset": False}
    with PPOTrainer("ALE/Pong-v5", {**CONFIG, "env_config": env_config}) as trainer:
        (path,) = trainer.evaluate(1, record_dir=tmp_path)["videos"]
    video = watch(path)
    assert video.size == (160, 210)
    assert len(video.brightness) == 11  # ten steps of four frames of the game


def test_an_env_without_frames(tmp_path):
    with PPOTrainer(Film, {**CONFIG, "env_config": {"blind": True}}) as trainer:
        with pytest.raises(EnvError, match=r"does not return frames(.|\n)*NoneType(.|\n)*render_mode"):
            trainer.evaluate(1, record_dir=tmp_path)
        assert trainer.evaluate(1)["episodes"] == 1
    assert list(tmp_path.iterdir()) == []


def test_an_environment_in_place_of_the_number_is_refused():
    with PPOTrainer(Film, CONFIG) as trainer:
        with pytest.raises(ConfigError, match=r"evaluate\(num_episodes=...\)\n +got: .*Film"):
            trainer.evaluate(Film(), 10)  # type: ignore[arg-type]  # as evaluate_policy(model, env, 10) of Stable-Baselines3
