# SPDX-License-Identifier: Apache-2.0
"""Keys that a fleet shares, and the order in which they are changed: install
everywhere, use, remove. Pure. No error and no name has a key in it.

A box accepts every key of its file and encrypts with the first. Nothing is lost
while every box accepts what every other encrypts with: each step here keeps that
whichever boxes have made it, so a run may end anywhere."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

MAX_KEYS = 8  # as edged and edgeproxy take them
MAX_FILE = 16 << 10  # bytes
SIZE = 32  # bytes of a key
STEPS = ("install", "use", "remove")
SECRETS = "/etc/edge/secrets/"

# The only thing that a list of keys does not tell is which of them is the new one.
_NOTE = re.compile(r"^# rotation: ([0-9a-f]{8}) is (installed|in use)$")
_SAYS = {"install": "installed", "use": "in use"}


class Refused(Exception):
    """Why nothing was done, and what to do."""


def name_of(key):
    """The short name of a key, as edgectl guard and edgectl status show it."""
    return hashlib.sha256(key).hexdigest()[:8]


class Ring:
    """The content of a key file: comments before the first key, the keys, and the step
    of a rotation that is on its way, with the name of its new key."""

    def __init__(self, keys, head=(), step=None, new=None):
        self.keys, self.head, self.step, self.new = list(keys), list(head), step, new

    @property
    def names(self):
        return [name_of(k) for k in self.keys]

    def content(self):
        lines = list(self.head)
        if self.step:
            lines.append(f"# rotation: {self.new} is {_SAYS[self.step]}")
        lines += [base64.b64encode(k).decode() for k in self.keys]
        return ("\n".join(lines) + "\n").encode()


def parse(content, where):
    """The ring of a key file; where is what errors call it."""
    if len(content) > MAX_FILE:
        raise Refused(f"{where} has more than {MAX_FILE} bytes: it is no file of keys")
    keys, head, note = [], [], None
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        line = line.strip()
        said = _NOTE.match(line)
        if said:
            note = said
        elif line.startswith("#") or not line:
            head += [line] if not keys and line else []
        else:
            keys.append(_key(line, f"{where}, line {number}"))
            if keys[-1] in keys[:-1]:
                raise Refused(f"{where}, line {number}: this key is given twice; remove one of the two lines")
    if not 1 <= len(keys) <= MAX_KEYS:
        raise Refused(f"{where} has {len(keys)} keys, not from 1 to {MAX_KEYS}; make one with: openssl rand -base64 32")
    return _ring(keys, head, note)


def _key(line, where):
    try:
        key = base64.b64decode(line, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != SIZE:
        raise Refused(f"{where} does not hold {SIZE} bytes in base64; make a key with: openssl rand -base64 32")
    return key


def _ring(keys, head, note):
    """A note that does not fit the keys is of somebody who has edited them: it counts no
    more. The keys then are at rest, and all of them are accepted to the end."""
    new, step = (note.group(1), note.group(2)) if note else (None, None)
    names = [name_of(k) for k in keys]
    if step == "in use" and names[0] == new and len(keys) > 1:
        return Ring(keys, head, "use", new)
    if step == "installed" and new in names[1:]:
        return Ring(keys, head, "install", new)
    return Ring(keys, head)


def source_of(path):
    """The name in secrets/fleet of what a box has at path."""
    return path[len(SECRETS):] if path.startswith(SECRETS) else path.rsplit("/", 1)[-1]


def keep_of(value):
    """How many older keys are kept, as a playbook gives it."""
    text = str(value if value is not None else 0).strip()
    if not text.isdecimal() or int(text) >= MAX_KEYS:
        raise Refused(f"keep is {text}: expected how many older keys stay accepted, 0 to {MAX_KEYS - 1}")
    return int(text)


class Plan:
    """A rotation: what the file is after each step. keep is how many of the older keys
    are accepted on."""

    def __init__(self, new, older, head=(), keep=0):
        older = list(older)[: MAX_KEYS - 1]
        self.new = name_of(new)
        self.rings = {
            "install": Ring(older + [new], head, "install", self.new),
            "use": Ring([new] + older, head, "use", self.new),
            "remove": Ring([new] + older[:keep], head),
        }

    def names(self, step):
        return self.rings[step].names

    def content(self, step):
        return self.rings[step].content()


def resume(ring, keep=0):
    """The plan of the rotation that a ring is in the middle of, or None."""
    if not ring.step:
        return None
    new = ring.keys[ring.names.index(ring.new)]
    return Plan(new, [k for k in ring.keys if k != new], ring.head, keep)


def begin(ring, new, keep=0):
    """The plan for another first key; None if it is that already."""
    if ring.keys[0] == new:
        return None
    return Plan(new, [k for k in ring.keys if k != new], ring.head, keep)


class Box:
    """What is known of a box: the names of the keys that it goes by, those of its file,
    the one that encrypts first, and the step that the file notes. why says what is not
    known."""

    def __init__(self, name, loaded=None, file=None, noted=None, why="", reached=True):
        self.name, self.loaded, self.file, self.noted, self.why, self.reached = name, loaded, file, noted, why, reached

    def has(self, plan, step):
        """Whether a step is done here; what is further is as well."""
        if not self.loaded or self.loaded != self.file:
            return False
        if step == "install":
            return plan.new in self.loaded
        # The last step may leave the keys as they are (keep), and takes the note away.
        return self.loaded[0] == plan.new and (step == "use" or self.loaded == plan.names("remove") and not self.noted)


def trouble(plan, step, boxes, strict, resumed=False):
    """Why a step may not begin: for each box what is wrong with it. A box that is down
    may miss the first step, since nothing depends on it before the second. strict is
    for keys without which boxes do not hear each other. resumed: by the file, all boxes
    have made the step before."""
    out, ring = [], plan.rings[step]
    before = None if resumed or step == STEPS[0] else STEPS[STEPS.index(step) - 1]
    away = [box.name for box in boxes if not box.reached] if before is None else []
    for box in boxes:
        why = _absent(box, before) or _apart(box, ring, strict) or _foreign(box, ring, strict, away)
        if not why and before and not box.has(plan, before):
            why = f"it has {_list(box.loaded)} in use, and {_list(box.file)} in its file"
        if why:
            out.append(f"{box.name}: {why}")
    return out


def _absent(box, before):
    if not box.reached:
        return (box.why or "it was not reached") if before else ""
    if box.loaded is None:
        return box.why or "it does not say which keys it has in use"
    return ""


def _apart(box, ring, strict):
    """A box that encrypts with a key which the others are about to accept no more, or
    never have."""
    if not strict or not box.loaded or box.loaded[0] in ring.names:
        return ""
    return f"it encrypts with {box.loaded[0]}, which is not among {_list(ring.names)}"


def _foreign(box, ring, strict, away):
    """A box that accepts a key of another change: one that is not reached may encrypt with
    it, and would be heard no more."""
    others = [name for name in box.loaded or [] if name not in ring.names]
    if not strict or not others or not away:
        return ""
    return f"it accepts {_list(others)}, which is not among {_list(ring.names)}, and {', '.join(away)}, which was not reached, may encrypt with that"


def todo(plan, step, boxes):
    """The boxes that a step is still to be made on."""
    return [box.name for box in boxes if box.reached and not box.has(plan, step)]


def unfinished(plan, boxes):
    """What is left after the last step."""
    return [f"{box.name}: {box.why or 'it has ' + _list(box.loaded) + ' in use'}" for box in boxes if not box.has(plan, "remove")]


def _list(names):
    return ", ".join(names) if names else "no keys of the fleet"
