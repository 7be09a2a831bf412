# SPDX-License-Identifier: Apache-2.0
"""Dashboard, rules and the autoscaler's adapter only query metrics and labels that the daemon
has."""

import re

import promql_parser
import pytest

import queries

# Labels that Prometheus adds to scraped series, here and in Kubernetes.
OF_THE_TARGET = {"job", "instance", "namespace", "pod"}
QUERIES = queries.dashboard_queries() + queries.rule_queries() + queries.adapter_queries()


@pytest.fixture(scope="module")
def series(tree):
    series = queries.known_metrics(tree / "bin/gemmd")
    assert len(series) > 30, series
    return series


def check(text, series):
    """Each series is known, and each label in the query is a label of its series."""
    recorded = {rule["record"] for rule in queries.rules() if "record" in rule}
    own = []
    asked = set()

    def visit(node):
        kind = type(node).__name__
        if kind == "VectorSelector":
            assert node.name in series or node.name in recorded or node.name == "up", node.name
            if node.name in series:
                labels = {matcher.name for matcher in node.matchers.matchers}
                assert labels <= series[node.name] | OF_THE_TARGET, f"{node.name}: {labels}"
            own.append(node.name)
        elif kind == "AggregateExpr" and node.modifier:
            asked.update(node.modifier.labels)
        elif kind == "BinaryExpr" and node.modifier and node.modifier.matching:
            asked.update(node.modifier.matching.labels)
        return True

    promql_parser.walk(promql_parser.parse(text), visit)
    assert own
    available = OF_THE_TARGET.union(*(series.get(name, set()) for name in own))
    assert asked <= available, f"{asked - available} is no label of {own}"


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.place)
def test_a_query_asks_for_what_there_is(query, series):
    check(query.text, series)


@pytest.mark.parametrize(
    "wrong",
    [
        "gemmd_nothing_total",
        'gemmd_products_total{kernel="x"}',
        "sum by (stage) (gemmd_products_total)",
        "gemmd_product_duration_seconds",
    ],
)
def test_a_wrong_query_is_noticed(wrong, series):
    with pytest.raises(AssertionError):
        check(wrong, series)


def test_every_metric_of_gemmd_is_seen_by_someone(series):
    words = set(re.findall(r"\w+", " ".join(query.text for query in QUERIES)))
    seen = {re.sub("_(bucket|sum|count)$", "", word) for word in words}
    own = {re.sub("_(bucket|sum|count)$", "", name) for name in series if name.startswith("gemmd_")}
    unseen = own - seen
    assert not unseen, f"neither in the dashboard nor in a rule: {unseen}"
