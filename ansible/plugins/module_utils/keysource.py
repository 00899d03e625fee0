# SPDX-License-Identifier: Apache-2.0
"""A file of secrets on the controller, encrypted by Vault or not. What is decrypted is on
no disk. It is written as it was read: where it is, with the password that it was read
with, with its owner and mode, and in one step."""

from __future__ import annotations

import os
import stat
import tempfile

from ansible.errors import AnsibleError
from ansible.parsing.vault import VaultLib, is_encrypted, parse_vaulttext_envelope
from ansible_collections.catchment.edge.plugins.module_utils import files
from ansible_collections.catchment.edge.plugins.module_utils.keyring import MAX_FILE, Refused

_VAULT = 16  # so much larger than its content an encrypted file may be; it is four times


class Source:
    def __init__(self, loader, path, limit=MAX_FILE):
        # The loader knows the passwords and has no call to encrypt with one.
        self.vault = getattr(loader, "_vault", None) or VaultLib()
        self.path, self.limit, self.secret, self.label = path, limit, None, None
        self.access = None  # owner, group and mode

    def read(self):
        try:
            # To open a pipe would wait for somebody to write into it.
            with open(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as f:
                st = os.fstat(f.fileno())
                if not stat.S_ISREG(st.st_mode):
                    raise Refused(f"{self.path} is not a regular file")
                self.access = (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode))
                raw = f.read(_VAULT * self.limit + 1)
        except FileNotFoundError:
            raise Refused(f"{self.path} is not there: it holds the keys of the fleet; make the first with: openssl rand -base64 32 > {self.path}") from None
        except OSError as err:
            raise Refused(f"read {self.path}: {err.strerror}") from None
        plain = raw
        if len(raw) <= _VAULT * self.limit and is_encrypted(raw):
            plain = self._decrypted(raw)
        if len(plain) > self.limit:
            raise Refused(f"{self.path} has more than {self.limit} bytes, which no box takes")
        return plain

    def _decrypted(self, raw):
        try:
            plain, _, self.secret = self.vault.decrypt_and_get_vault_id(raw)
            self.label = parse_vaulttext_envelope(raw)[3]
        except AnsibleError as err:
            raise Refused(f"decrypt {self.path}: {err}; give its password, for example with --ask-vault-pass") from None
        return plain

    def write(self, plain):
        """Replaces the file. A reader sees the one before or the one after. One that is a
        link stays one: what it names is the file."""
        if self.secret is not None:
            label = self.label if self.label not in (None, "default") else None
            plain = self.vault.encrypt(plain, secret=self.secret, vault_id=label)
        at, new = os.path.realpath(self.path), None
        try:
            handle, new = tempfile.mkstemp(prefix=".edge-", dir=os.path.dirname(at))
            with os.fdopen(handle, "wb") as f:
                f.write(plain)
                self._own(f.fileno())
                f.flush()
                os.fsync(f.fileno())
            os.rename(new, at)
        except OSError as err:
            if new is not None:
                os.unlink(new)
            raise Refused(f"write {self.path}: {err.strerror}; nothing was changed") from None

    def _own(self, file):
        """The owner and group of before, as far as it is ours to say; then the mode, so that
        nobody else reads it meanwhile."""
        uid, gid, mode = self.access or (-1, -1, 0o600)
        for owner in ((-1, gid), (uid, -1)):
            try:
                os.fchown(file, *owner)
            except PermissionError:
                pass  # it is one of several people who work in this folder
        os.fchmod(file, mode)


def walk(folder, prefix, bad):
    """The files of one folder of secrets: name -> path. bad says why a name is none."""
    def stop(err):
        # A folder that is not there has no files; one that cannot be read may have some.
        if not isinstance(err, FileNotFoundError):
            raise Refused(f"read {err.filename}: {err.strerror}")

    out = {}
    for at, folders, names in os.walk(folder, onerror=stop):
        folders[:] = [f for f in folders if not f.startswith(".")]
        for name in folders:
            if os.path.islink(os.path.join(at, name)):
                raise Refused(f"{os.path.join(at, name)} is a link to a folder, in which nothing is looked for: have a folder with links to files there")
        for name in names:
            path = os.path.join(at, name)
            short = os.path.relpath(path, folder)
            if files.ignored(short):
                continue
            why = bad(short)
            if why:
                raise Refused(f"{path}: {why}")
            out[prefix + short] = path
    return out
