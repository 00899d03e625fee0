# SPDX-License-Identifier: Apache-2.0
"""The configuration of this box as files: what is in force, what is to be, and the
difference. Runs on the box, with the standard library alone. Names are paths below
/etc/edge. Nothing here prints the content of a file but that of edge.yaml."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import stat
import tempfile
import time

from ansible_collections.catchment.edge.plugins.module_utils import regular

ROOT = "/etc/edge"
STORE = "/var/lib/edge-config/current"
# Where role edge_keys leaves the private key that a box has made for itself.
LOCAL = "/var/lib/edge-keys"
# Which files of a plain Debian are written and perhaps not in force. A boot has all in
# force, and no such file.
UNAPPLIED = "/run/edge-config-unapplied"
_HALF, _OLD = ".edge-", 3600  # begin of the name of a file that is being written; seconds
MAX_FILE = 8 << 20  # bytes, as edgectl takes them


class Refused(Exception):
    """Why nothing was done."""


def is_image(root=ROOT):
    """Whether /etc/edge is the store's: made from the image."""
    try:
        to = os.path.join(os.path.dirname(root), os.readlink(root))
    except OSError:
        return False
    return os.path.normpath(to) == STORE


def read(path):
    """The bytes of a file, or None if there is none."""
    try:
        content = regular.read(path, MAX_FILE)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise Refused(f"read {path}: {err.strerror}") from err
    if len(content) > MAX_FILE:
        raise Refused(f"{path} has more than {MAX_FILE} bytes: it is no file of a configuration")
    return content


def tree(root):
    """All files of a configuration in force: name -> bytes."""
    out = {}
    for folder, folders, names in os.walk(os.path.join(root, "")):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(names):
            full = os.path.join(folder, name)
            short = os.path.relpath(full, root)
            if short != "generation.json" and not name.startswith(".") and os.path.isfile(full):
                out[short] = read(full)
    return out


def part(name):
    """What edgectl config apply replaces as a whole: a file at the top, or a folder."""
    first, _, rest = name.partition("/")
    return first + "/" if rest else first


def whole(now, given, named, local):
    """The folder that an appliance is to apply: what is given, and of the secrets in
    force, or made on the box, those that edge.yaml names."""
    out = {}
    for name in named:
        kept = now.get(name, local.get(os.path.basename(name)))
        if name.startswith("secrets/") and kept is not None:
            out[name] = kept
    out.update(given)
    return out


def differences(now, to_be, replaces=True):
    """(name, what) of each file that is other than it is to be. replaces: parts are
    replaced as a whole, so that a file that is not given goes."""
    out = []
    for name in sorted(to_be):
        if name not in now or now[name] is None:
            out.append((name, "new"))
        elif now[name] != to_be[name]:
            out.append((name, "changed"))
    parts = {part(name) for name in to_be}
    gone = [name for name in sorted(now) if name not in to_be and part(name) in parts]
    return out + [(name, "gone") for name in gone if replaces]


def told(differs):
    """One line for each file but a changed edge.yaml, which is shown itself."""
    words = {"new": "is new", "changed": "has another content", "gone": "goes", "access": "gets its owner and mode", "written": "is written, and perhaps not in force",
             "unused": "is used by nobody: the daemons have not run since the boot, and are started"}
    return [f"{name} {words[what]}" for name, what in differs if name != "edge.yaml" or what == "unused"]


def ids(access):
    """The numbers of an owner and a group."""
    try:
        return pwd.getpwnam(access["owner"]).pw_uid, grp.getgrnam(access["group"]).gr_gid
    except KeyError as err:
        raise Refused(f"this box has no user or group {access['owner']}: install the package first (role edge_host)") from err


def access_differs(path, access):
    """Whether a file that is there has another owner or mode."""
    try:
        st = os.stat(path)
    except OSError:
        return False
    return (st.st_uid, st.st_gid) != ids(access) or stat.S_IMODE(st.st_mode) != access["mode"]


def make_folder(folder, mode=0o755):
    """A folder with those above it that are not there. The daemons pass through them,
    whatever root's umask is."""
    if os.path.isdir(folder):
        return
    make_folder(os.path.dirname(folder))
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, mode)
        os.chmod(folder, mode)


def _sweep(folder):
    """Removes what a run that was killed has left: half of a secret is one too."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(FileNotFoundError):
            if name.startswith(_HALF) and time.time() - os.lstat(path).st_mtime > _OLD:
                os.unlink(path)


def write(path, content, uid, gid, mode):
    """Replaces a file in one step: nobody sees half of it, nor with another owner."""
    folder = os.path.dirname(path)
    make_folder(folder)
    _sweep(folder)
    handle, new = tempfile.mkstemp(prefix=_HALF, dir=folder)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(content)
            os.fchown(f.fileno(), uid, gid)
            os.fchmod(f.fileno(), mode)
            f.flush()
            os.fsync(f.fileno())
        os.rename(new, path)
    except BaseException:
        os.unlink(new)
        raise


def unapplied():
    """The files that a run before this one has written and not seen in force."""
    return [name for name in (read(UNAPPLIED) or b"").decode(errors="replace").split("\n") if name]


class Exchange:
    """Files that are replaced, with the way back as long as this process lives, and a
    note if it does not: a file that is right may be one that no daemon has read."""

    def __init__(self, root):
        self.root, self.before = root, []

    def begin(self, names):
        if names:
            write(UNAPPLIED, "".join(name + "\n" for name in names).encode(), os.getuid(), os.getgid(), 0o600)

    def end(self):
        if os.path.exists(UNAPPLIED):
            os.unlink(UNAPPLIED)

    def put(self, name, content, access):
        path = os.path.join(self.root, name)
        uid, gid = ids(access)
        old = read(path)
        st = os.stat(path) if old is not None else None
        write(path, content, uid, gid, access["mode"])
        self.before.append((path, old, st))

    def back(self):
        """Undoes all puts, the last first."""
        for path, old, st in reversed(self.before):
            if old is None:
                os.unlink(path)
            else:
                write(path, old, st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode))
        self.before = []


def refuse_pending(ctl):
    """No change of a box while another of it waits to be confirmed."""
    waits = (ctl.call("config", "show") or {}).get("pending")
    if waits:
        raise Refused(
            f"generation {waits.get('to')} of this box waits to be confirmed until {waits.get('deadline')}: "
            "edgectl config confirm or edgectl config revert on the box, or wait"
        )


@contextlib.contextmanager
def staged(files, run="/run"):
    """A new folder with files that only root can read, on a file system in memory; it is
    gone afterwards."""
    folder = tempfile.mkdtemp(prefix="edge-config-", dir=run if os.access(run, os.W_OK) else None)
    try:
        for name, content in files.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
                f.write(content)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
