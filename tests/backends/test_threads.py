"""The choice of threads, with a simulated clock."""

import pytest

from dg_lsp.backends.threads import choose_threads, physical_cores


class Machine:
    """Steps take the table's seconds; `stalls` are (threads, number of the run) of runs that take 0.7 s."""

    def __init__(self, seconds, stalls=()):
        self.now = 0.0
        self.seconds = seconds
        self.stalls = set(stalls)
        self.runs = dict.fromkeys(seconds, 0)

    def step(self, threads):
        stalled = (threads, self.runs[threads]) in self.stalls
        self.runs[threads] += 1
        self.now += 0.7 if stalled else self.seconds[threads]

    def choice(self):
        return choose_threads(self.step, sorted(self.seconds), clock=lambda: self.now)


@pytest.mark.parametrize(
    ("milliseconds", "stalls", "choice"),
    [
        pytest.param({1: 4, 2: 2.5, 4: 1.5}, (), 4, id="more threads are faster"),
        pytest.param({1: 4, 2: 2.5, 4: 3.5}, (), 2, id="too many threads are slower"),
        pytest.param({1: 4, 2: 2.1, 4: 2}, (), 2, id="a tie goes to fewer threads"),
        pytest.param({1: 4, 2: 2}, [0], 2, id="the first run stalls"),
        pytest.param({1: 4, 2: 2}, [1], 2, id="one run stalls"),
        pytest.param({1: 4, 2: 2}, range(0, 40, 2), 1, id="every second run stalls"),
        pytest.param({1: 4, 2: 2}, range(40), 1, id="every run stalls"),
    ],
)
def test_fastest_candidate_without_frequent_stalls_is_chosen(milliseconds, stalls, choice):
    seconds = {threads: ms / 1000 for threads, ms in milliseconds.items()}
    assert Machine(seconds, [(2, number) for number in stalls]).choice() == choice


@pytest.mark.parametrize(
    ("seconds", "most_runs", "most_seconds"),
    [
        pytest.param({1: 0.01, 2: 0.008}, 40, 0.299, id="fast steps"),
        pytest.param({1: 3.0, 2: 2.0}, 6, 30, id="slow steps"),
        pytest.param({1: 0.01}, 0, 0, id="nothing to choose from"),
    ],
)
def test_measurement_is_limited_in_time(seconds, most_runs, most_seconds):
    machine = Machine(seconds)
    assert machine.choice() == max(seconds)
    assert max(machine.runs.values()) <= most_runs
    assert machine.now <= most_seconds


def test_hardware_threads_of_a_core_count_once(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(siblings)
    assert physical_cores(tmp_path) == 2
    assert physical_cores(tmp_path / "missing") == 4
