# SPDX-License-Identifier: Apache-2.0
"""The rules of deploy/prometheus, by promtool."""

import shutil

import yaml

from image import SOURCE, run

RULES = SOURCE / "deploy/prometheus/rules.yaml"
TESTS = SOURCE / "tests/deploy/rules_test.yaml"


def test_promtool_accepts_the_rules():
    run("promtool", "check", "rules", "--lint-fatal", RULES)


def test_alerts_fire_for_what_they_are_meant_for(tmp_path):
    shutil.copy(RULES, tmp_path)
    shutil.copy(TESTS, tmp_path)
    run("promtool", "test", "rules", tmp_path / TESTS.name)


def test_each_alert_is_seen_to_fire():
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    fired = {
        case["alertname"]
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for case in test.get("alert_rule_test", [])
        if case.get("exp_alerts")
    }
    assert alerts and fired == alerts
