# SPDX-License-Identifier: Apache-2.0
"""The runbook has a section for each alert, and the events, options and commands that it names
exist."""

import re

import pytest

import queries
from image import SOURCE

RUNBOOK = SOURCE / "deploy/RUNBOOK.md"
TEXT = RUNBOOK.read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
ALERTS = {rule["alert"]: rule for rule in queries.rules() if "alert" in rule}


def sources(*patterns):
    return "\n".join(path.read_text() for pattern in patterns for path in SOURCE.glob(pattern))


def test_each_alert_has_its_section_and_each_section_an_alert():
    assert len(ALERTS) > 10 and list(SECTIONS) == list(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_leads_to_its_section(alert):
    # The anchor of a heading is its text in lower case.
    url = ALERTS[alert]["annotations"]["runbook_url"]
    assert url == f"{RUNBOOK.relative_to(SOURCE)}#{alert.lower()}"


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_says_what_it_means_how_to_look_and_what_to_do(section):
    parts = re.findall(r"^(Means|Look|Do): (.+?)(?=\n\n|\Z)", SECTIONS[section], re.M | re.S)
    assert [name for name, _ in parts] == ["Means", "Look", "Do"]
    assert all(len(text) > 60 for _, text in parts)


def test_links_within_the_runbook_lead_somewhere():
    anchors = set(re.findall(r"\]\(#([^)]+)\)", TEXT))
    assert anchors and anchors <= {name.lower() for name in SECTIONS}


def test_events_options_and_commands_are_those_of_the_programs():
    server = sources("server/*.cc", "server/*/*.cc")
    events = set(re.findall(r"event=(\w+)", TEXT))
    assert len(events) > 5 and events <= set(re.findall(r"event=(\w+)", server))
    ours = [code for code in re.findall(r"`([^`\n]+)`", TEXT) if re.match(r"gemmctl|--", code)]
    options = {word for code in ours for word in re.findall(r"--[a-z-]+", code)}
    known = server + sources("client/gemmctl/*.cc", "client/terminal/*.cc")
    assert len(options) > 15 and all(f'"{option}"' in known or f'"{option[2:]}"' in known for option in options)
    commands = set(re.findall(r"\bgemmctl ([a-z-]+)", TEXT))
    assert len(commands) > 6 and all(f'"{command}", ' in known for command in commands), commands
