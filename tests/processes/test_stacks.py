"""Stacks of processes that crash, exit or hang."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

import rollax
from rollax.processes.actors import ProcessLostError
from rollax.processes.failure_rules import FailureRules
from rollax.processes.ray_actors import RayActors
from rollax.processes.stacks import Stack, StackFolder
from tests.processes.stand_in import NEVER, SAMPLE, Does

HERE = rollax.__path__[0]
PROCESS = """
import faulthandler, os, sys, time
from rollax.processes.stacks import StackFile, writing_stacks

class Simulator:
    def outer(self, how):
        self._inner(how)

    def _inner(self, how):
        if how == "crashes":
            faulthandler._sigsegv()
        if how == "exits":
            sys.exit(3)
        while how in ("hangs", "is late") and not os.path.getsize(sys.argv[1]): time.sleep(0.01)
        time.sleep(0.1)  # the rest of the file
        if how == "hangs":
            os._exit(1)

writing_stacks(Simulator)(stacks=StackFile(sys.argv[1], 0.2, 10.0)).outer(sys.argv[2])
"""
CALLED = "in _inner() (<string>, line {}), called by outer() (<string>, line 7)"


def played(path: str, how: str) -> None:
    """Runs a process that writes its stacks into a file."""
    subprocess.run([sys.executable, "-c", PROCESS, path, how], check=False, capture_output=True)


@pytest.mark.parametrize(
    ("how", "reason", "line"),
    [("crashes", "Segmentation fault", 11), ("exits", "SystemExit(3)", 13), ("hangs", "", 14)],
)
def test_a_process_writes_where_it_is(how, reason, line):
    folder = StackFolder()
    played(folder.file(1, 1.0, 1.0).path, how)
    stack = folder.stack_of(1)
    assert stack is not None
    assert (stack.reason, f"in {stack.place}") == (reason, CALLED.format(line))
    assert f'  File "<string>", line {line} in _inner\n' in stack.text
    assert folder.stack_of(2) is None


@pytest.mark.parametrize("how", ["is late", "returns"])
def test_a_process_whose_calls_return_writes_nothing(how):
    folder = StackFolder()
    played(folder.file(1, 1.0, 1.0).path, how)
    assert folder.stack_of(1) is None


def test_the_next_process_of_an_actor_empties_its_file():
    folder = StackFolder()
    played(folder.file(1, 1.0, 1.0).path, "crashes")
    played(folder.file(1, 1.0, 1.0).path, "returns")
    assert folder.stack_of(1) is None


def test_a_process_without_the_folder_runs_as_before(tmp_path):
    path = str(tmp_path / "of another machine" / "1.txt")
    done = subprocess.run([sys.executable, "-c", PROCESS, path, "returns"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_folder_is_removed_with_its_object():
    folder = StackFolder()
    played(path := folder.file(1, 1.0, 1.0).path, "crashes")
    del folder
    with pytest.raises(FileNotFoundError):
        open(path)  # noqa: SIM115


class TestReading:
    def test_the_thread_that_runs_the_environment(self):
        # As of a worker that samples in the background: the main thread waits, and a thread of Ray too.
        dump = f"""Timeout (0:00:03)!
Thread 0x01 (most recent call first):
  File "/ray/gcs.py", line 5 in poll

Thread 0x02 (most recent call first):
  File "/home/me/simulator.py", line 7 in wait
  File "/home/me/my_env.py", line 9 in step
  File "{HERE}/env/vector/__init__.py", line 134 in vector_step
  File "{sys.prefix}/ray/worker.py", line 1 in main_loop

Thread 0x03 (most recent call first):
  File "{threading.__file__}", line 331 in wait
  File "{HERE}/rollout/background_sampling.py", line 140 in take
"""
        stack = Stack.of(dump)
        assert stack is not None
        assert stack.place == ("wait() (/home/me/simulator.py, line 7), called by step() (/home/me/my_env.py, line 9)")
        assert stack.reason == ""
        assert stack.text.startswith("Thread 0x02 (most recent call first):\n  File")
        assert stack.text.endswith("in main_loop")

    def test_at_most_three_frames_and_those_of_libraries_only_without_others(self):
        library = threading.__file__
        inner = "".join(f'  File "{library}", line {line} in f{line}\n' for line in (1, 2, 3, 4))
        stack = Stack.of(f"Fatal Python error: Aborted\n\nCurrent thread 0x01 (most recent call first):\n{inner}")
        assert stack is not None
        assert stack.place == ", called by ".join(f"f{line}() ({library}, line {line})" for line in (1, 2, 3))
        assert stack.reason == "Aborted"

    @pytest.mark.parametrize("dump", ["", "Timeout!\nThread 0x01 (most recent call first):\n", "Fatal Python error: x"])
    def test_none(self, dump):
        assert Stack.of(dump) is None


STACK = Stack("the text", "step() (my_env.py, line 9)", "Segmentation fault")


class TestErrors:
    @pytest.fixture
    def error_of(self, pool):
        """Returns the error that the only worker causes with one of its calls."""

        def error_of(does, method=SAMPLE, stack=STACK, **rules):
            workers, stand_in = pool(1, FailureRules(**rules), {(1, 0, method): [does]}, makes=method == "make")
            stand_in.stacks[1] = stack
            try:
                workers.make_all()
                workers.request(1, SAMPLE)
                return workers.collect()
            except rollax.WorkerError as error:
                return error

        return error_of

    def test_of_a_lost_process(self, error_of):
        error = error_of(Does(1, ProcessLostError("it died", "all about its death")))
        assert error.parts["where"] == "rollout worker 1, sample_fragment(), in step() (my_env.py, line 9)"
        assert error.parts["got"] == "Segmentation fault; it died"
        assert str(error.__cause__) == "\nall about its death\n\nthe text"

    def test_of_a_process_that_cannot_make_its_worker(self, error_of):
        lost = ProcessLostError("ModuleNotFoundError: No module named 'mine'", "all about it", unmade=True)
        error = error_of(Does(1, lost), "make", stack=None)
        assert "every node" in str(error)
        assert error.parts["what"] == "A process cannot make its rollout worker."
        assert (error.parts["where"], error.parts["got"]) == ("rollout worker 1", str(lost))
        assert str(error.__cause__) == "\nall about it"

    def test_of_one_that_hangs_at_its_start(self, error_of):
        error = error_of(Does(NEVER), "make")
        assert error.parts["where"] == "rollout worker 1, make(), in step() (my_env.py, line 9)"
        assert "waits for" in str(error)
        assert "resources" not in str(error)

    def test_of_one_that_hangs_later(self, error_of):
        error = error_of(Does(NEVER), timeout_s=5.0)
        assert error.parts["where"].endswith(", in step() (my_env.py, line 9)")
        assert error.parts["got"] == "no answer for 5 s"
        assert str(error.__cause__) == "\nthe text"


class TestReasonsOfRay:
    def outcome(self, raised: Exception) -> Exception:
        """The outcome of a call for which Ray raises."""
        import ray

        def get(reference):
            raise raised

        stand_in = SimpleNamespace(get=get, exceptions=ray.exceptions)
        (found,) = RayActors(stand_in, lambda index, restarts: None).outcomes(["a reference"])
        return found

    @pytest.mark.parametrize(
        "cause", [GeneratorExit("closed"), SystemExit("left"), BaseException("own"), ValueError("no")]
    )
    def test_an_exception_that_is_no_exception_class_is_an_error_and_no_result(self, cause):
        import ray

        text = f"{type(cause).__name__}: {cause}"
        found = self.outcome(ray.exceptions.RayTaskError("work", f"Traceback:\n{text}", cause))
        if isinstance(cause, ValueError):
            assert found is cause
        else:
            assert isinstance(found, rollax.WorkerError)
            assert text in str(found)

    def test_the_exit_comes_before_rays_advice(self):
        import ray

        text = (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: RolloutWorker\n\tpid: 7\n"
            "Worker exit detail: End of file. Some common causes include: (1) the OOM killer"
        )
        error = ray.exceptions.ActorDiedError()
        error.error_msg = text
        lost = self.outcome(error)
        assert isinstance(lost, ProcessLostError)
        assert str(lost) == ("The actor died unexpectedly before finishing this task. Worker exit detail: End of file.")
        assert lost.details == text

    def test_an_actor_that_cannot_be_made(self):
        import ray

        text = (
            "The actor died because of an error raised in its creation task, ray::RolloutWorker.__init__()\n"
            "  At least one of the input arguments for this task could not be computed:\n"
            "ray.exceptions.RaySystemError: System error: No module named 'mine'\n"
            "traceback: Traceback (most recent call last):\n"
            "          ^^^^\n"
            "ModuleNotFoundError: No module named 'mine'\n"
        )
        lost = self.outcome(ray.exceptions.RayActorError(error_msg=text, actor_init_failed=True))
        assert isinstance(lost, ProcessLostError)
        assert (str(lost), lost.details) == ("ModuleNotFoundError: No module named 'mine'", text)
        assert lost.unmade

    def test_a_process_killed_for_lack_of_memory_is_lost(self):
        import ray

        lost = self.outcome(ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.\n"))
        assert isinstance(lost, ProcessLostError)
        assert str(lost) == "Task was killed due to the node running low on memory."
