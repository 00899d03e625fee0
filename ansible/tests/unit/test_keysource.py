# SPDX-License-Identifier: Apache-2.0
"""The operator's file of keys: as it was but for its content, or as it was."""
import os
import stat
import tempfile
import unittest
from unittest import mock

import collection_path  # noqa: F401
from ansible.parsing.vault import VaultLib, VaultSecret, is_encrypted
from ansible_collections.catchment.edge.plugins.module_utils import keysource
from ansible_collections.catchment.edge.plugins.module_utils.keyring import Refused


class Loader:
    def __init__(self, *passwords):
        self._vault = VaultLib([(name, VaultSecret(word)) for name, word in passwords])


class Files(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = place.name
        self.path = os.path.join(self.folder, "gossip.key")
        self.put(b"one\n")

    def put(self, content, mode=0o640):
        with open(self.path, "wb") as f:
            f.write(content)
        os.chmod(self.path, mode)

    def content(self, path=None):
        with open(path or self.path, "rb") as f:
            return f.read()

    def test_a_link_stays(self):
        real = os.path.join(self.folder, "elsewhere", "real.key")
        os.mkdir(os.path.dirname(real))
        os.rename(self.path, real)
        os.symlink("elsewhere/real.key", self.path)
        source = keysource.Source(Loader(), self.path)
        self.assertEqual(source.read(), b"one\n")
        source.write(b"two\n")
        self.assertEqual((os.readlink(self.path), self.content(real)), ("elsewhere/real.key", b"two\n"))
        self.assertEqual(os.listdir(os.path.dirname(real)), ["real.key"])

    def test_owner_and_mode(self):
        if os.getuid() == 0:
            os.chown(self.path, 12345, 23456)
        before = os.stat(self.path)
        source = keysource.Source(Loader(), self.path)
        source.read()
        source.write(b"two\n")
        after = os.stat(self.path)
        self.assertEqual((after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)), (before.st_uid, before.st_gid, 0o640))

    def test_another_owner(self):
        """Who may not give files away still writes it."""
        source = keysource.Source(Loader(), self.path)
        source.read()
        with mock.patch("os.fchown", side_effect=PermissionError):
            source.write(b"two\n")
        self.assertEqual(self.content(), b"two\n")

    def test_a_full_disk_leaves_nothing(self):
        for call in ("os.fsync", "os.rename"):
            source = keysource.Source(Loader(), self.path)
            source.read()
            with mock.patch(call, side_effect=OSError(28, "No space left on device")), self.assertRaisesRegex(Refused, "No space left on device; nothing was changed"):
                source.write(b"two\n")
            self.assertEqual((self.content(), os.listdir(self.folder)), (b"one\n", ["gossip.key"]))

    def test_vault(self):
        old, new = ("old", b"password one"), ("default", b"password two")
        self.put(VaultLib([]).encrypt(b"secret\n", VaultSecret(old[1]), vault_id="old"))
        with mock.patch("tempfile.mkstemp", side_effect=AssertionError("what is decrypted is on no disk")):
            source = keysource.Source(Loader(new, old), self.path)
            self.assertEqual(source.read(), b"secret\n")
        source.write(b"other\n")
        self.assertTrue(is_encrypted(self.content()))
        self.assertIn(b";old\n", self.content())
        self.assertEqual(keysource.Source(Loader(old), self.path).read(), b"other\n")
        with self.assertRaisesRegex(Refused, "decrypt .*gossip.key: .*--ask-vault-pass"):
            keysource.Source(Loader(), self.path).read()

    def test_refused(self):
        limit = 100
        self.put(b"x" * limit)
        self.assertEqual(len(keysource.Source(Loader(), self.path, limit).read()), limit)
        for content in (b"x" * (limit + 1), b"x" * 10000):
            self.put(content)
            with self.assertRaisesRegex(Refused, "gossip.key has more than 100 bytes"):
                keysource.Source(Loader(), self.path, limit).read()
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        for path, want in ((pipe, "pipe is not a regular file"), (self.folder, "Is a directory"), (self.path + "x", "is not there: .* openssl rand")):
            with self.assertRaisesRegex(Refused, want):
                keysource.Source(Loader(), path).read()

    def test_the_folders_of_secrets(self):
        """What is a link to a file is one of the secrets; one to a folder would be left out
        without a word."""
        os.symlink(self.path, os.path.join(self.folder, "link.key"))
        os.symlink("/", os.path.join(self.folder, ".git"))
        self.assertEqual(sorted(keysource.walk(self.folder, "secrets/", lambda name: None)), ["secrets/gossip.key", "secrets/link.key"])
        os.symlink("/etc", os.path.join(self.folder, "tls"))
        with self.assertRaisesRegex(Refused, "/tls is a link to a folder"):
            keysource.walk(self.folder, "secrets/", lambda name: None)
        self.assertEqual(keysource.walk(self.path + "x", "secrets/", lambda name: None), {})
        for folder, err in ((self.path, None), (self.folder, PermissionError(13, "Permission denied", self.folder))):
            with mock.patch("os.scandir", side_effect=err) if err else mock.MagicMock(), self.assertRaisesRegex(Refused, "read .*: (Not a directory|Permission denied)"):
                keysource.walk(folder, "secrets/", lambda name: None)


if __name__ == "__main__":
    unittest.main()
