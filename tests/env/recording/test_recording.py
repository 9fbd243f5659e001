"""Videos of selected episodes of every kind of environment: frames, frame rates, and errors."""

import os
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollax import BaseEnv, ConfigError, EnvContext, EnvError, RollaxError, record_env, to_base_env
from rollax.env import recording
from rollax.env.making import EnvSettings, make_base_env
from rollax.env.recording import VideoFile
from tests.env.recording.films import WHOLE, Film, watch
from tests.env.refused import play, refused
from tests.env.wraps import DictView, ListVector, OneAgent

DRAWS = {"render_mode": "rgb_array"}


class FilmVector(ListVector):
    """A user's vector environment that draws its copies."""

    metadata = Film.metadata

    def __init__(self) -> None:
        super().__init__(2, lambda: Film(DRAWS))

    def get_sub_environments(self):
        return []

    def try_render_at(self, index):
        return self.envs[index].render()


class FilmAgents(OneAgent):
    """A multi-agent environment that can be drawn."""

    metadata = Film.metadata

    def __init__(self, context) -> None:
        super().__init__(lambda: Film(context))

    def render(self):
        return self.env.render()


class FilmDicts(DictView):
    """A user's BaseEnv that begins the next episode by itself, in the poll after the end."""

    def __init__(self) -> None:
        super().__init__(lambda: Film(DRAWS), 2, restarts_itself=True)

    def try_render(self, env_id=None):
        return self.envs[env_id or 0].env.render()


def native(mode: AutoresetMode):
    return lambda context: SyncVectorEnv([lambda: Film(context)] * 2, autoreset_mode=mode)


MAKERS = {
    "class": Film,
    "vector": lambda context: FilmVector(),
    **{f"native {mode.name}": native(mode) for mode in AutoresetMode},
    "multi-agent": FilmAgents,
    "dict view that begins by itself": lambda context: FilmDicts(),
}


def recorded(env, folder, num_envs=2, worker_index=0, **choice) -> recording.RecordedEnv:
    base = make_base_env(record_env(env, folder, **choice), EnvContext(worker_index=worker_index), num_envs)
    assert isinstance(base, recording.RecordedEnv)
    return base


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind(kind, tmp_path):
    """Each film shows the reset, every step and the real last state, and nothing of the next episode."""
    base = recorded(MAKERS[kind], tmp_path, episodes=lambda episode: episode == 1, sub_envs=None)
    if kind.startswith("dict"):
        assert base.reset_rows(np.arange(2)) is None
        for _ in range(9):
            rows = base.poll_rows()
            if rows.acts.any():
                base.send_rows(rows, np.flatnonzero(rows.acts), np.zeros(rows.acts.sum(), np.int64))
            else:
                assert base.reset_rows(rows.ended_envs) is None
    else:
        play(base, 9)
    base.stop()
    assert [path.name for path in sorted(base.paths)] == [f"env_{i}_episode_000001.mp4" for i in (0, 1)]
    assert sorted(tmp_path.iterdir()) == sorted(base.paths)
    for path in base.paths:
        video = watch(path)
        # Where the step that ends an episode also resets, the last state can no longer be drawn.
        assert video.brightness == (WHOLE[:3] if "SAME_STEP" in kind else WHOLE)
        assert video.size == (50, 32)
        assert video.frames_per_second == (30 if "dict" in kind else 7)


def test_only_selected_episodes_are_drawn(tmp_path):
    base = recorded(Film, tmp_path, episodes=lambda episode: episode % 2 == 1, sub_envs=[1])
    first, second = base.get_sub_environments()
    play(base, 12)
    assert (first.drawn, second.drawn) == (0, 8)
    assert [path.name for path in base.paths] == ["env_1_episode_000001.mp4", "env_1_episode_000003.mp4"]
    base.stop()


def test_the_first_episode_and_every_hundredth_of_the_first_copy(tmp_path):
    base = recorded(Film, tmp_path, num_envs=1)
    play(base, 303)
    base.stop()
    assert [path.name for path in base.paths] == ["episode_000000.mp4", "episode_000100.mp4"]


def test_only_the_first_worker_records(tmp_path):
    for worker_index in (0, 1):
        recorded(Film, tmp_path, worker_index=worker_index)  # asserts that it is a `RecordedEnv`
    base = make_base_env(record_env(Film, tmp_path), EnvContext(worker_index=2), 2)
    assert not isinstance(base, recording.RecordedEnv)
    assert base.get_sub_environments()[0].render_mode is None


@pytest.mark.parametrize(
    "make", [lambda path: record_env(Film(DRAWS), path), lambda path: recorded(lambda: Film(DRAWS), path, num_envs=1)]
)
def test_an_instance_and_a_creator_without_settings(make, tmp_path):
    base = make(tmp_path)
    assert isinstance(base, BaseEnv)
    play(base, 3)
    base.stop()
    assert watch(tmp_path / "episode_000000.mp4").brightness == WHOLE


def test_an_id_gets_the_render_mode(tmp_path):
    creator = record_env("CartPole-v1", tmp_path)
    (env,) = creator(EnvContext()).get_sub_environments()
    assert env.render_mode == "rgb_array"
    (other,) = creator(EnvContext({"render_mode": "human"})).get_sub_environments()
    assert other.render_mode == "human"
    base = creator(EnvContext())
    play(base, 11)  # the pole falls, as the action is always left
    base.stop()
    video = watch(tmp_path / "episode_000000.mp4")
    assert video.size == (600, 400)
    assert video.frames_per_second == 50
    assert 9 <= len(video.brightness) <= 12


def test_recording_passes_rows_and_attributes_through(tmp_path):
    """For several copies, and with frames drawn by hand."""
    bare, base = to_base_env(Film(DRAWS), lambda _: Film(DRAWS), 3), recorded(Film, tmp_path, num_envs=3)
    assert (base.num_envs, base.observation_space, base.action_space) == (3, Film.observation_space, Film.action_space)
    assert len(base.get_sub_environments()) == 3
    for _ in range(2):
        one, other = play(bare, 5), play(base, 5)
        np.testing.assert_array_equal(one.obs, other.obs)
        np.testing.assert_array_equal(one.starts, other.starts)
    assert base.try_render(1).shape == (33, 50, 3)
    base.stop()


class FilmLater(Film):
    """Has no spaces before its first reset, and fails in its second episode."""

    steps = 0

    def __init__(self, context) -> None:
        super().__init__(context)
        self.observation_space = self.action_space = None

    def step(self, action):
        FilmLater.steps += 1
        if FilmLater.steps == 5:
            raise RuntimeError("broken")
        return super().step(action)


def test_the_settings_of_environments_apply(tmp_path):
    """The film of the lost episode is deleted at once, and the next episode has its number."""
    creator = record_env(FilmLater, tmp_path, episodes=lambda episode: True)
    spaces = {"observation_space": Film.observation_space, "action_space": Film.action_space}
    base = make_base_env(creator, EnvContext(), 1, EnvSettings(restart_failed_sub_environments=True, **spaces))
    assert base.observation_space == Film.observation_space
    rows = base.reset_rows(np.arange(1))
    for _ in range(8):
        base.send_rows(rows, None, np.zeros(1, np.int64))
        polled = base.poll_rows()
        assert not (len(polled.dropped_envs) and base._videos)
        rows = base.reset_rows(polled.over_envs()) if len(polled.over_envs()) else polled
    base.stop()
    assert [path.name for path in base.paths] == ["episode_000000.mp4", "episode_000001.mp4"]
    assert sorted(tmp_path.iterdir()) == sorted(base.paths)


def test_an_agent_that_appears_later_starts_no_film(tmp_path):
    class Joined(FilmAgents):
        def step(self, actions):
            obs, rewards, terms, truncs, infos = super().step(actions)
            obs["b"] = obs["a"]
            return obs, rewards, terms, truncs, infos

    base = recorded(Joined, tmp_path, num_envs=1, episodes=lambda episode: True)
    play(base, 6)
    base.stop()
    assert [path.name for path in base.paths] == ["episode_000000.mp4", "episode_000001.mp4"]
    assert [watch(path).brightness for path in base.paths] == [WHOLE, WHOLE]


class TestUnfinished:
    """An unfinished episode leaves neither a file nor an encoder."""

    def test_stop(self, tmp_path):
        base = recorded(Film, tmp_path)
        play(base, 2)
        (video,) = base._videos.values()
        base.stop()
        assert video._encoder.returncode is not None
        assert list(tmp_path.iterdir()) == []

    def test_reset_in_between(self, tmp_path):
        base = recorded(Film, tmp_path, episodes=lambda episode: episode < 2)
        play(base, 2)
        play(base, 3)
        base.stop()
        assert [path.name for path in tmp_path.iterdir()] == ["env_0_episode_000001.mp4"]


class TestRefused:
    @pytest.mark.parametrize(
        ("frame", "says"),
        [
            (None, "does not return frames...sub-environment 0...NoneType...render_mode"),
            (np.zeros((4, 4), np.uint8), "does not return frames...[height, width, 3]"),
            (np.zeros((4, 4, 4), np.uint8), "does not return frames...[height, width, 3]"),
            (np.zeros((32, 32, 3)), "does not return frames...float64 of shape (32, 32, 3)...uint8"),  # from 0 to 1
            ("picture", "does not return frames...str"),
            (DependencyNotInstalled("no pygame"), "no pygame...sub-environment 0...render()...install"),
        ],
    )
    def test_no_pictures(self, frame, says, tmp_path):
        class Odd(Film):
            def render(self):
                if isinstance(frame, Exception):
                    raise frame
                return frame

        refused(EnvError, play, recorded(Odd, tmp_path), 1, says=says)

    def test_a_frame_of_another_size(self, tmp_path):
        class Grows(Film):
            def render(self):
                return np.zeros((8 + 2 * self.state, 8, 3), np.uint8)

        base = recorded(Grows, tmp_path)
        refused(EnvError, play, base, 1, says="size of a frame differs...episode_000000.mp4...(10, 8, 3)...(8, 8, 3)")
        base.stop()

    def test_a_folder_without_write_permission(self, tmp_path):
        video = VideoFile(tmp_path / "gone" / "episode.mp4", 30)
        video.add(np.zeros((8, 8, 3), np.uint8))
        video.discard()
        (tmp_path / "gone" / ".episode.mp4.part").mkdir()
        video = VideoFile(tmp_path / "gone" / "episode.mp4", 30)
        video.add(np.zeros((8, 8, 3), np.uint8))
        refused(RollaxError, video.finish, says="The video was not written...episode.mp4...part")
        assert not video.path.exists()

    def test_without_the_extra(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
        says = "requires a package...imageio-ffmpeg...pip install 'rollax[video]'"
        refused(ConfigError, record_env, Film, tmp_path, says=says)
        refused(ConfigError, record_env, Film(DRAWS), tmp_path, says=says)


@pytest.mark.skipif(sys.platform != "linux", reason="SDL asks for a screen elsewhere")
def test_quiet_without_a_screen(tmp_path):
    """SDL would write to standard error that it finds no screen."""
    script = """
import sys, numpy
from rollax import EnvContext, record_env
base = record_env("CartPole-v1", sys.argv[1])(EnvContext())
base.reset_rows(numpy.arange(1))
base.stop()
"""
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "XDG_RUNTIME_DIR")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_set_video_driver_is_kept(monkeypatch):
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    recording.quiet_without_screen()
    assert "SDL_VIDEODRIVER" not in os.environ


@pytest.mark.parametrize("key", ["frame_stack", "action_repeat"])
def test_the_frame_rate_of_a_vector_environment_in_stacks_and_repetitions(key, tmp_path):
    creator = record_env(lambda context: FilmVector(), tmp_path)
    base = make_base_env(creator, EnvContext(), 2, EnvSettings(**{key: 2}))
    play(base, 3)
    base.stop()
    assert watch(base.paths[0]).frames_per_second == 7


def test_an_invalid_frame_rate_is_replaced_by_the_default(tmp_path):
    class Odd(Film):
        metadata = {"render_modes": ["rgb_array"], "render_fps": "fast"}

    base = recorded(Odd, tmp_path, num_envs=1)
    play(base, 4)
    base.stop()
    assert watch(base.paths[0]).frames_per_second == 30


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    base = recorded(Film, tmp_path / "file" / "videos", num_envs=1)
    refused(RollaxError, play, base, 4, says="video was not written...Not a directory")
    base.stop()
