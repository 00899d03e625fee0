# SPDX-License-Identifier: Apache-2.0
"""Talk to edged over its unix socket: HTTP and JSON, as edgectl does.

Every failure is an EdgedError whose text says where, what and what to do, so
that a module can show it as it is.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import socket
import threading
import urllib.parse

from ansible_collections.catchment.edge.plugins.module_utils import shape

SOCKET = "/run/edge/edged.sock"
TIMEOUT = 10.0  # seconds; an order waits until it is on the disk

# What edgectl takes, in bytes: a status has what every node says of every prefix.
MAX_ANSWER = 128 << 20


class EdgedError(Exception):
    """No answer, or none that can be used. The text is for the operator."""


class Refused(EdgedError):
    """edged understood, and said no: the text is its own."""


def _no_number(text):
    raise ValueError(f"{text} is no number of JSON")


class _Connection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path, self._kept, self.is_cut = path, None, False

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self._kept = self.sock  # http.client forgets it once an answer has begun
        self.sock.connect(self._path)

    def cut(self):
        """End it, from another thread: who reads has the end of the answer at once."""
        self.is_cut = True
        with contextlib.suppress(OSError, AttributeError):
            self._kept.shutdown(socket.SHUT_RDWR)


class Client:
    """One edged. It keeps no connection: a restart between two calls is nothing."""

    def __init__(self, path=SOCKET, timeout=TIMEOUT, max_answer=MAX_ANSWER):
        self.path, self.timeout, self.max_answer = path, timeout, max_answer

    def status(self):
        """All that edged knows (SystemStatus)."""
        return self._fit(self.call("GET", "/v1/status"))

    def drain(self, order):
        """Order to leave; returns the status after it."""
        return self._fit(self.call("POST", "/v1/drain", order))

    def undrain(self, scope):
        """Take an order back; returns the status after it."""
        return self._fit(self.call("POST", "/v1/undrain", scope))

    def guard_what_if(self, site):
        """Whether a site could leave now, by what this node has heard. Asks nobody."""
        return self._fit(self.call("GET", "/v1/guard/what-if?" + urllib.parse.urlencode({"withdraw": site})), shape.WHAT_IF)

    def _fit(self, answer, form=None):
        """Half understood is not understood: it may be what would be in the way."""
        why = shape.misfit(answer, form or shape.STATUS)
        if why:
            raise EdgedError(f"the answer on {self.path} is not what this collection knows of edged ({why}): are the two of versions that go together?")
        return answer

    def call(self, method, path, body=None):
        """One request. The answer is a JSON object, else EdgedError."""
        try:
            code, raw = self.raw(method, path, body)
        except OSError as err:
            raise EdgedError(self._remedy(method, err)) from err
        except http.client.HTTPException as err:
            raise EdgedError(f"what answers on {self.path} does not speak HTTP ({type(err).__name__}): is it edged?") from err
        return self._decode(code, raw)

    def raw(self, method, path, body=None):
        """(HTTP code, bytes) of one request; raises OSError and HTTPException. All of it
        has the timeout, not each byte."""
        conn = _Connection(self.path, self.timeout)
        late = threading.Timer(self.timeout, conn.cut)
        late.start()
        try:
            data = None if body is None else json.dumps(body).encode()
            conn.request(method, path, body=data, headers={"Content-Type": "application/json"} if data else {})
            answer = conn.getresponse()
            got = answer.status, answer.read(self.max_answer + 1)
        except (OSError, http.client.HTTPException):
            if not conn.is_cut:
                raise
        finally:
            late.cancel()
            conn.close()
        if conn.is_cut:
            raise TimeoutError("timed out")
        return got

    def _decode(self, code, raw):
        if len(raw) > self.max_answer:
            raise EdgedError(f"the answer on {self.path} is larger than {self.max_answer} bytes: is it edged?")
        try:
            out = json.loads(raw, parse_constant=_no_number)
        except (ValueError, RecursionError) as err:
            raise EdgedError(f"the answer on {self.path} (HTTP {code}) is not JSON: is it edged?") from err
        if not isinstance(out, dict):
            raise EdgedError(f"the answer on {self.path} (HTTP {code}) is not an object: is it edged?")
        if code // 100 != 2:
            raise Refused(str(out.get("error") or f"edged refused with HTTP {code} and no reason"))
        return out

    def _remedy(self, method, err):
        if isinstance(err, PermissionError):
            return f"no permission for {self.path}: be root, or a member of the group edge"
        if isinstance(err, (FileNotFoundError, ConnectionRefusedError)):
            return f"edged does not answer on {self.path}: is it running? systemctl status edged"
        if isinstance(err, TimeoutError) or err.errno == errno.EAGAIN:
            if method != "GET":
                return f"edged did not answer on {self.path} within {self.timeout:g}s; the order may still be done: look with edgectl status"
            return f"edged did not answer on {self.path} within {self.timeout:g}s: is it busy or stuck? journalctl -u edged"
        return f"edged broke the connection on {self.path} ({err}): journalctl -u edged may say why"
