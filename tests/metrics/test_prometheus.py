from dg_lsp.metrics.prometheus import Counter, Histogram, labelled


def test_a_counter_without_labels_begins_at_nothing():
    assert (
        Counter("n_total", "Things.", ()).exposition() == "# HELP n_total Things.\n# TYPE n_total counter\nn_total 0\n"
    )


def test_a_counter_adds_up_by_its_labels():
    counter = Counter("n_total", "Things.", ("kind", "size"))
    for amount, *labels in ((1, "a", "s"), (2, "a", "s"), (0.5, "b", "s")):
        counter.add(amount, *labels)
    assert counter.exposition().splitlines()[2:] == ['n_total{kind="a",size="s"} 3', 'n_total{kind="b",size="s"} 0.5']


def test_a_histograms_buckets_add_up():
    histogram = Histogram("t_seconds", "Time.", ("path",), (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value, "/a")
    assert histogram.exposition() == (
        "# HELP t_seconds Time.\n# TYPE t_seconds histogram\n"
        't_seconds_bucket{path="/a",le="0.1"} 2\n'
        't_seconds_bucket{path="/a",le="1"} 3\n'
        't_seconds_bucket{path="/a",le="+Inf"} 4\n'
        't_seconds_sum{path="/a"} 7.65\n'
        't_seconds_count{path="/a"} 4\n'
    )


def test_labels_are_escaped():
    assert labelled(("a",), ('x"\\\n',)) == '{a="x\\"\\\\\\n"}'
