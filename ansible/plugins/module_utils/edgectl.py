# SPDX-License-Identifier: Apache-2.0
"""edgectl as the modules call it: its answers in JSON, its refusals as text."""

from __future__ import annotations

import json
import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Failed(Exception):
    """edgectl has said no. errors are those of a configuration, if it was one."""

    def __init__(self, text, errors=None):
        super().__init__(text)
        self.errors = errors or []


class Edgectl:
    def __init__(self, module, program, socket):
        self.run = module.run_command
        self.program, self.socket = program, socket

    def call(self, *args):
        """The answer of a command. Secrets are never among args, which ps shows."""
        rc, out, err = self.run([self.program, "--socket", self.socket, "-o", "json"] + list(args))
        answer = parse(out)
        if rc == 0:
            return answer
        errors = [e for e in answer if isinstance(e, dict)] if isinstance(answer, list) else []
        lines = [str(e) for e in answer if isinstance(e, str)] if isinstance(answer, list) else []
        text = "\n".join(lines) or clean(err).strip() or f"edgectl {args[0]} ended with {rc} and said nothing"
        raise Failed(text, errors)

    def status(self):
        """What edged says of itself, or None where it does not answer."""
        try:
            answer = self.call("status")
        except Failed:
            return None
        return answer if isinstance(answer, dict) else None


def parse(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def clean(text):
    """Text without what a terminal would act on."""
    return _CONTROL.sub("", text)


def sessions(status):
    """peer -> whether its session is established; {} while edgebgp does not answer."""
    if not status or status.get("speaker_error"):
        return {}
    peers = (status.get("speaker") or {}).get("peers") or []
    return {p.get("id"): p.get("session") == "established" for p in peers if isinstance(p, dict)}


def established(status):
    return sorted(peer for peer, up in sessions(status).items() if up)


def lost(before, status):
    """The peers that were established, are still configured, and are not any more: all
    of them, while nobody can say."""
    if not status or status.get("speaker_error"):
        return sorted(before)
    now = sessions(status)
    return sorted(peer for peer in before if not now.get(peer, True))
