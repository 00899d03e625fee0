#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_verify
short_description: Judge a whole fleet by the answers of edge_status, and write a report
description:
  - Takes the registered answers of M(catchment.edge.edge_status) of all nodes, finds what a careful operator would, and
    writes it as C(verify.md) and C(verify.json). It runs on the controller and asks no box.
  - Findings are C(critical) (users are hurt, or the next failure hurts them), C(warning) (to be mended) or C(notice) (to be known).
options:
  answers:
    description: The answer of each node; of one that was not reached what Ansible has registered for it.
    type: dict
    required: true
  fleet:
    description: C(edge_fleet) of the inventory, to compare with; empty knows of no fleet.
    type: dict
    default: {}
  report:
    description: The folder of the report, which is made; without it none is written.
    type: path
  fail_on:
    description: From which severity on the module fails.
    type: str
    choices: [critical, warning, notice, never]
    default: warning
  limits:
    description:
      - What counts as too much. C(clock_skew_seconds) (5), C(disk_warning_percent) (85), C(disk_critical_percent) (95),
        C(certificate_warning_days) (21), C(certificate_critical_days) (3), C(flaps) (20).
    type: dict
    default: {}
attributes:
  check_mode:
    description: It judges, and says which files it would write.
    support: full
  diff_mode:
    description: The report has another time in it each time; there is no difference to show.
    support: none
author: Catchment maintainers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Judge the fleet
  catchment.edge.edge_verify:
    answers: "{{ dict(groups['edge'] | zip(groups['edge'] | map('extract', hostvars, 'verify_answer'))) }}"
    fleet: "{{ edge_fleet }}"
    report: "{{ playbook_dir }}/report"
    fail_on: critical
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
findings:
  description: What was found, the worst first, each with severity, node (null for the fleet), what and remedy.
  type: list
  elements: dict
  returned: always
worst:
  description: The severity of the worst finding; null if there is none.
  type: str
  returned: always
counts:
  description: How many there are of each severity.
  type: dict
  returned: always
files:
  description: The files of the report.
  type: list
  elements: str
  returned: always
"""

import json
import os
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.catchment.edge.plugins.module_utils import verify, verify_text


def write(path, text):
    """In one step, so that nobody reads half of it."""
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write(text)
    os.rename(path + ".new", path)


def limits_of(given):
    """ValueError names what is no limit."""
    out = {}
    for key, value in given.items():
        if key not in verify.LIMITS:
            raise ValueError(f"limits: {key} is none of {', '.join(sorted(verify.LIMITS))}")
        try:
            out[key] = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"limits: {key}: {value!r} is no number") from None
    return out


def main():
    module = AnsibleModule(
        argument_spec={
            "answers": {"type": "dict", "required": True},
            "fleet": {"type": "dict", "default": {}},
            "report": {"type": "path"},
            "fail_on": {"type": "str", "choices": ["critical", "warning", "notice", "never"], "default": "warning"},
            "limits": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    p, now, files = module.params, time.time(), []
    try:
        findings = verify.judge(p["answers"], p["fleet"], now, limits_of(p["limits"]))
    except ValueError as err:
        module.fail_json(msg=str(err))
    doc = verify_text.document(p["answers"], findings, now)
    if p["report"]:
        files = [os.path.join(p["report"], n) for n in ("verify.md", "verify.json")]
        if not module.check_mode:
            try:
                os.makedirs(p["report"], exist_ok=True)
                write(files[0], verify_text.markdown(doc))
                write(files[1], json.dumps(doc, indent=2, sort_keys=True) + "\n")
            except OSError as err:
                module.fail_json(msg=f"write the report to {p['report']}: {err.strerror}", findings=findings)
    # A report of how things stand is no change of anything.
    out = {"changed": False, "findings": findings, "worst": doc["worst"], "counts": doc["counts"], "files": files}
    bad = [f for f in findings if p["fail_on"] != "never" and verify.SEVERITIES.index(f["severity"]) <= verify.SEVERITIES.index(p["fail_on"])]
    if bad:
        lines = "".join(f"\n  {f['severity']}: {f['node'] or 'fleet'}: {f['what']} ({f['remedy']})" for f in bad[:20])
        more = f"\n  and {len(bad) - 20} more" if len(bad) > 20 else ""
        module.fail_json(msg=f"{len(bad)} findings are {p['fail_on']} or worse:{lines}{more}" + (f"\nThe report: {files[0]}" if files else ""), **out)
    module.exit_json(**out)


if __name__ == "__main__":
    main()
