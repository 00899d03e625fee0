# SPDX-License-Identifier: Apache-2.0
"""What a careful operator looks at on a box beside edged: disks, certificates,
secrets that must be equal (by a short hash), the file of the configuration,
daemons that run a replaced program. It only reads."""

from __future__ import annotations

import hashlib
import os

from ansible_collections.catchment.edge.plugins.module_utils import certificate, regular

_MAX = 4 << 20  # bytes of a file that is read whole
DAEMONS = ("edged", "edgebgp", "edgeproxy")


def _read(path):
    raw = regular.read(path, _MAX)
    if len(raw) > _MAX:
        raise ValueError(f"it is larger than {_MAX} bytes")
    return raw


def disk(path):
    """How full a file system is, in percent of what may be used."""
    try:
        s, device = os.statvfs(path), os.stat(path).st_dev
    except OSError as err:
        return {"path": path, "error": err.strerror}
    used = s.f_blocks - s.f_bfree
    files = s.f_files - s.f_ffree
    return {
        "path": path, "error": None, "device": device, "free_bytes": s.f_bavail * s.f_frsize,
        "used_percent": round(100 * used / max(1, used + s.f_bavail), 1),
        "inodes_percent": round(100 * files / s.f_files, 1) if s.f_files else 0.0,
        "read_only": bool(s.f_flag & os.ST_RDONLY),
    }


def certificate_end(path):
    """When the certificate of a file ends, in seconds since the epoch."""
    try:
        return {"path": path, "error": None, "not_after": certificate.not_after(_read(path).decode("ascii", "replace"))}
    except OSError as err:
        return {"path": path, "error": err.strerror, "not_after": None}
    except ValueError as err:
        return {"path": path, "error": str(err), "not_after": None}


def short_hash(path):
    """The first 8 hex digits of the SHA-256 of a secret, as edged shows those of the
    gossip keys: enough to compare, and nothing to begin with. White space around it
    does not count, as it does not for edged."""
    try:
        return {"path": path, "error": None, "id": hashlib.sha256(_read(path).strip()).hexdigest()[:8]}
    except (OSError, ValueError) as err:
        return {"path": path, "error": getattr(err, "strerror", None) or str(err), "id": None}


def config_in_force(path, want):
    """Whether the file is what edged has parsed: "yes", "no", or why that is not known."""
    try:
        return "yes" if hashlib.sha256(_read(path)).hexdigest() == want else "no"
    except (OSError, ValueError) as err:
        return getattr(err, "strerror", None) or str(err)


def replaced(proc="/proc"):
    """Daemons of this network namespace whose program has been replaced since they
    were started: they run an older version until they are restarted."""
    out = set()
    try:
        here = os.readlink(os.path.join(proc, "self/ns/net"))
        pids = [p for p in os.listdir(proc) if p.isdigit()]
    except OSError:
        return []
    for pid in pids:
        try:
            exe = os.readlink(os.path.join(proc, pid, "exe"))
            name = os.path.basename(exe.removesuffix(" (deleted)"))
            if exe.endswith(" (deleted)") and name in DAEMONS and os.readlink(os.path.join(proc, pid, "ns/net")) == here:
                out.add(name)
        except OSError:
            continue  # it has ended, or is not ours to look at
    return sorted(out)
