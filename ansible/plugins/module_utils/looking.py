# SPDX-License-Identifier: Apache-2.0
"""What the modules have in common that look at edged until something is so: their
options (doc_fragments/edged.py tells of them), and the time that they have."""

from __future__ import annotations

import time

from ansible_collections.catchment.edge.plugins.module_utils import appliance, durations, edged, readiness

EDGED = {"socket": {"type": "path", "default": edged.SOCKET}, "timeout": {"type": "str", "default": "10s"}}
HEALTH = {"ignore_alarms": {"type": "list", "elements": "str", "default": []}, "image_dir": {"type": "path", "default": appliance.IMAGE_DIR}}


class Looks:
    """So many seconds from now on, and a pause between two looks."""

    def __init__(self, length, interval):
        self.length, self.interval = length, interval
        self._begun = time.monotonic()

    def waited(self):
        """Seconds since the first look, to a tenth."""
        return round(time.monotonic() - self._begun, 1)

    def rest(self):
        """Seconds that are left; 0 or less if the time is over."""
        return self.length - (time.monotonic() - self._begun)

    def pause(self):
        """Wait for the next look; False, at once, if the time is over."""
        rest = self.rest()
        if rest > 0:
            time.sleep(min(self.interval, rest))
        return rest > 0


def begin(module, length="wait"):
    """(client, looks) by a module's options; length names the one that says how long.
    An option that is wrong ends the module."""
    p = module.params
    try:
        looks = Looks(durations.seconds(p[length], length), durations.seconds(p["interval"], "interval"))
        client = edged.Client(p["socket"], durations.seconds(p["timeout"], "timeout"))
        readiness.patterns(p.get("ignore_alarms") or [])
    except ValueError as err:
        module.fail_json(msg=str(err))
    if looks.interval <= 0 or client.timeout <= 0:
        module.fail_json(msg="interval and timeout are to be above 0")
    return client, looks
