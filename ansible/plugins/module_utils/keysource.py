# SPDX-License-Identifier: Apache-2.0
"""A file of secrets on the controller, encrypted by Vault or not. It is written as it
was read: with the password that it was read with, with its mode, and in one step."""

from __future__ import annotations

import os
import stat
import tempfile

from ansible.errors import AnsibleError
from ansible.parsing.vault import VaultLib, is_encrypted, parse_vaulttext_envelope
from ansible_collections.catchment.edge.plugins.module_utils.keyring import MAX_FILE, Refused


class Source:
    def __init__(self, loader, path):
        # The loader knows the passwords and has no call to encrypt with one.
        self.vault = getattr(loader, "_vault", None) or VaultLib()
        self.path, self.secret, self.label, self.mode = path, None, None, 0o600

    def read(self):
        try:
            with open(self.path, "rb") as f:
                raw = f.read(16 * MAX_FILE)
                self.mode = stat.S_IMODE(os.fstat(f.fileno()).st_mode)
        except FileNotFoundError:
            raise Refused(f"{self.path} is not there: it holds the keys of the fleet; make the first with: openssl rand -base64 32 > {self.path}") from None
        except OSError as err:
            raise Refused(f"read {self.path}: {err.strerror}") from None
        if not is_encrypted(raw):
            return raw
        try:
            plain, _, self.secret = self.vault.decrypt_and_get_vault_id(raw)
            self.label = parse_vaulttext_envelope(raw)[3]
        except AnsibleError as err:
            raise Refused(f"decrypt {self.path}: {err}; give its password, for example with --ask-vault-pass") from None
        return plain

    def write(self, plain):
        """Replaces the file. A reader sees the one before or the one after."""
        if self.secret is not None:
            label = self.label if self.label not in (None, "default") else None
            plain = self.vault.encrypt(plain, secret=self.secret, vault_id=label)
        try:
            handle, new = tempfile.mkstemp(prefix=".edge-", dir=os.path.dirname(self.path))
            with os.fdopen(handle, "wb") as f:
                os.fchmod(f.fileno(), self.mode)
                f.write(plain)
                f.flush()
                os.fsync(f.fileno())
            os.rename(new, self.path)
        except OSError as err:
            raise Refused(f"write {self.path}: {err.strerror}; nothing was changed") from None
