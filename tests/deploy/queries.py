# SPDX-License-Identifier: Apache-2.0
"""Every query to Prometheus in deploy/, and the metrics that the daemon says it has."""

import dataclasses
import json
import re

import yaml

from image import SOURCE, run

DASHBOARD = SOURCE / "deploy/grafana/dashboards/gemmd.json"
RULES = SOURCE / "deploy/prometheus/rules.yaml"
ADAPTER = SOURCE / "deploy/kubernetes/components/autoscaling/adapter_rules.yaml"


@dataclasses.dataclass
class Query:
    place: str
    text: str


def replace_variables(text, window):
    """The panel's query as Grafana sends it if everything is selected."""
    text = text.replace("$__rate_interval", window)
    return re.sub(r'"\$\w+"', '".*"', text)


def dashboard_queries(window="1m"):
    dashboard = json.loads(DASHBOARD.read_text())
    rows = None
    found = []
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            rows = panel["title"]
        for target in panel.get("targets", []):
            place = f"{rows}: {panel['title']}"
            found.append(Query(place, replace_variables(target["expr"], window)))
    for note in dashboard["annotations"]["list"]:
        found.append(Query(f"annotation {note['name']}", replace_variables(note["expr"], window)))
    for variable in dashboard["templating"]["list"]:
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable.get("definition", ""))
        if asked:
            text = replace_variables(f"count by ({asked[2]}) ({asked[1]})", window)
            found.append(Query(f"variable {variable['name']}", text))
    return found


def rules():
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def rule_queries():
    return [Query(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]


def adapter_queries():
    """As prometheus-adapter completes them for the pods of a namespace."""
    found = []
    for rule in yaml.safe_load(ADAPTER.read_text())["rules"]:
        text = rule["metricsQuery"].replace("<<.GroupBy>>", "pod")
        text = text.replace("<<.Series>>", rule["seriesQuery"].partition("{")[0])
        text = text.replace("<<.LabelMatchers>>", 'namespace="default",pod=~"a|b"')
        found += [Query("adapter", text), Query("adapter's series", rule["seriesQuery"])]
    return found


def known_metrics(gemmd):
    """The labels of each series that the daemon may have, from the list that it prints."""
    series = {}
    for metric in json.loads(run(gemmd, "--list-metrics")):
        name, labels = metric["name"], set(metric["labels"])
        if metric["type"] == "histogram":
            series[f"{name}_bucket"] = labels | {"le"}
            series[f"{name}_sum"] = series[f"{name}_count"] = labels
        else:
            series[name] = labels
    return series
