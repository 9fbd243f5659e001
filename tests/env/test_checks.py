from rollax.env.checks import FirstEpisodes, warn_once


def test_first_episodes():
    watched = FirstEpisodes(3)
    watched.polled([])
    watched.polled([1])
    assert watched.indices == {0, 2}
    watched.polled([1, 2])
    for _ in range(FirstEpisodes.MOST_POLLS - 4):
        watched.polled([])
    assert watched.indices == {0}
    watched.polled([])
    assert watched.indices == set()


def test_logs_once_for_each_subject(caplog):
    for subject in ("a", "b", "a"):
        warn_once("topic", subject, f"said of {subject}")
    assert [record.getMessage() for record in caplog.records] == ["said of a", "said of b"]
