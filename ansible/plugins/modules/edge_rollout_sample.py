#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: edge_rollout_sample
short_description: Read what a node counts of its requests, errors and latencies
description:
  - Reads the metrics of C(edgeproxy) over its unix socket. It changes nothing.
  - With C(for) it looks again after that time, tells how many requests a second there were, and whether the node was
    ready all the while. Three looks in a row at which it was not end it, and so does a daemon that was started again.
  - A node without C(edgeproxy) is an answer too; C(absent) says why there are no counters.
options:
  proxy_socket:
    description: The socket of C(edgeproxy).
    type: path
    default: /run/edge/edgeproxy.sock
  for:
    description: How long to look; C(0) reads once.
    type: str
    default: "0"
  interval:
    description: The pause between two looks at C(edged) with C(for), which says whether the node is ready.
    type: str
    default: 2s
  ready:
    description: Whether to look at C(edged) with C(for).
    type: bool
    default: true
extends_documentation_fragment: [catchment.edge.edged.reads, catchment.edge.edged, catchment.edge.edged.health]
author: Catchment developers (@catchment-dev)
"""

EXAMPLES = r"""
- name: Read the counters
  catchment.edge.edge_rollout_sample:
  register: before

- name: See for five minutes that it stays ready
  catchment.edge.edge_rollout_sample:
    for: 5m
"""

RETURN = r"""
counters:
  description: >-
    requests, errors (answers 5xx), handshakes, handshake_errors, panics, and latency (how many requests took no longer, by the
    bound in seconds); null if there are none.
  type: dict
  returned: always
absent:
  description: Why there are none.
  type: str
  returned: always
rate:
  description: Requests a second; null if it was read once.
  type: float
  returned: always
unready:
  description: Why the node was not ready, if it was not at the last look, or which daemon was started again.
  type: list
  elements: str
  returned: always
waited:
  description: How many seconds were waited.
  type: float
  returned: always
"""

import http.client
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.catchment.edge.plugins.module_utils import boot, edged, looking, readiness, rollout_soak

PATIENCE = 3  # looks in a row at which a node may be seen not ready
MAX_TEXT = 8 << 20  # bytes of /metrics


def read(params, timeout):
    """(counters, why there are none)."""
    client = edged.Client(params["proxy_socket"], timeout, MAX_TEXT)
    try:
        code, raw = client.raw("GET", "/metrics")
    except (FileNotFoundError, ConnectionRefusedError):
        return None, "no edgeproxy runs on it"
    except (OSError, http.client.HTTPException) as err:
        return None, f"edgeproxy does not tell its metrics on {params['proxy_socket']}: {err}"
    if code != 200:
        return None, f"edgeproxy answers /metrics with HTTP {code}"
    return rollout_soak.counters(raw.decode("utf-8", "replace")), None


class Watch:
    """Looks at edged until the time is over."""

    def __init__(self, module, client, looks):
        self.module, self.client, self.looks, self.starts = module, client, looks, {}

    def look(self):
        """(why the node is not ready, which daemons were started again)."""
        try:
            status = self.client.status()
        except edged.EdgedError as err:
            return [str(err)], []
        again = rollout_soak.started_again(self.starts, readiness.starts(status))
        return readiness.judge(status, time.time(), boot.facts(self.module), self.module.params["ignore_alarms"])[1], again

    def run(self):
        """Why it is not ready at the end. A daemon that dies is back between two looks, and
        what it had counted is gone: so that is a reason by itself."""
        streak, reasons, again = 0, [], []
        while True:
            if self.module.params["ready"]:
                reasons, again = self.look()
                streak = streak + 1 if reasons else 0
            if again:
                return again + reasons
            if streak >= PATIENCE or self.looks.rest() <= 0 and not reasons:
                return reasons
            # One that is not ready at the end has its looks, too.
            if not self.looks.pause():
                time.sleep(self.looks.interval)


def main():
    module = AnsibleModule(
        argument_spec={
            "proxy_socket": {"type": "path", "default": "/run/edge/edgeproxy.sock"},
            "for": {"type": "str", "default": "0"},
            "interval": {"type": "str", "default": "2s"},
            "ready": {"type": "bool", "default": True},
            **looking.EDGED,
            **looking.HEALTH,
        },
        supports_check_mode=True,
    )
    client, looks = looking.begin(module, length="for")
    begun = time.monotonic()
    before, absent = read(module.params, client.timeout)
    if looks.length <= 0:
        module.exit_json(changed=False, counters=before, absent=absent, rate=None, unready=[], waited=0.0)
    reasons = Watch(module, client, looks).run()
    after, absent = read(module.params, client.timeout)
    took = time.monotonic() - begun
    rate = round(rollout_soak.between(before, after)["requests"] / took, 3) if before and after else None
    module.exit_json(changed=False, counters=after, absent=absent, rate=rate, unready=reasons, waited=round(took, 1))


if __name__ == "__main__":
    main()
