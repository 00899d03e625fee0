# SPDX-License-Identifier: Apache-2.0
"""Whether the key of a box is the one that the fleet knows. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib

# What openssl writes before the 32 bytes (RFC 8410, section 4).
_SPKI = bytes.fromhex("302a300506032b6570032100")

# What people are shown in the place of a key that only a run that is no check makes.
NOT_YET = "(of the key that the box makes when this is no check)"


def stand_in(name):
    """What a check takes for the public key of a node that has none yet, so that all else
    is judged. Nothing is applied with it."""
    return base64.b64encode(hashlib.sha256(b"no key yet: " + name.encode()).digest()).decode()


def raw_public(text):
    """A public key as edgectl prints it; None for what is none."""
    try:
        key = base64.b64decode((text or "").strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(key) == len(_SPKI) + 32 and key.startswith(_SPKI):
        key = key[len(_SPKI):]
    return base64.b64encode(key).decode() if len(key) == 32 else None


def judge(here, known, path):
    """Why a box with the public key here (None: it has no key) is refused, if the fleet
    knows another, or None."""
    if not (known or "").strip():
        return None
    want = raw_public(known)
    if want is None:
        return "the public key that the fleet knows of this node is not 32 bytes in base64: correct its public_key in fleet.yaml, or public_keys/NAME.pub"
    if here == want:
        return None
    ways = (
        "If the box is to have a new key, remove public_keys/NAME.pub (or its public_key in fleet.yaml), run this again, commit the new one "
        "and have all boxes go by it (playbook site)"
    )
    if here is None:
        return f"the fleet knows the key {want} of this node, and {path} is not there: put it back from where the box was before. {ways}"
    return f"the key in {path} has the public half {here}, and the fleet knows {want} of this node: is it the right box (host of fleet.yaml)? {ways}"
