# SPDX-License-Identifier: Apache-2.0
"""Makes ansible_collections.catchment.edge importable from this tree, wherever it
is checked out: import it before anything of the collection."""

import atexit
import os
import sys
import tempfile

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PLACE = tempfile.TemporaryDirectory(prefix="edge-collection-")
atexit.register(_PLACE.cleanup)
_AT = os.path.join(_PLACE.name, "ansible_collections", "catchment")
os.makedirs(_AT)
os.symlink(_ROOT, os.path.join(_AT, "edge"))
sys.path.insert(0, _PLACE.name)
