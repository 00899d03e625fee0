# SPDX-License-Identifier: Apache-2.0
"""The client of edged, against sockets that answer well, badly, and not at all."""

import http.server
import os
import socket
import socketserver
import tempfile
import threading
import unittest

import collection_path  # noqa: F401

from ansible_collections.catchment.edge.plugins.module_utils import edged


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that has had enough of an answer is no failure of the test."""


def _handler(code, body, seen):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            size = int(self.headers.get("Content-Length") or 0)
            seen.append((self.command, self.path, self.rfile.read(size)))
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def address_string(self):
            return "unix"

        def log_message(self, *args):
            pass

    return Handler


class ClientTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "edged.sock")
        self.seen = []

    def serve(self, code, body):
        server = _Server(self.path, _handler(code, body, self.seen))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        return edged.Client(self.path, timeout=5, max_answer=1000)

    def test_answers(self):
        client = self.serve(200, b'{"node": "a1"}')
        self.assertEqual(client.status()["node"], "a1")
        client.drain({"reason": "x"})
        client.guard_what_if("a b")
        self.assertEqual(self.seen[1], ("POST", "/v1/drain", b'{"reason": "x"}'))
        self.assertEqual(self.seen[2][1], "/v1/guard/what-if?withdraw=a+b")

    def test_refusal_is_its_own_words(self):
        with self.assertRaisesRegex(edged.Refused, "^the node is not drained$"):
            self.serve(409, b'{"error": "the node is not drained"}').undrain({})

    def test_bad_answers(self):
        for code, body, want in (
            (200, b"[]", "is not an object"), (200, b"<html>", "is not JSON"), (500, b"", "HTTP 500.*is not JSON"),
            (503, b"{}", "refused with HTTP 503"), (200, b'{"a": "' + b"x" * 2000 + b'"}', "larger than 1000 bytes"), (200, b"\xff\xfe", "is not JSON"),
        ):
            with self.subTest(body=body[:20]):
                client = self.serve(code, body)
                with self.assertRaisesRegex(edged.EdgedError, want):
                    client.status()
                self.doCleanups()
                self.setUp()

    def test_nobody(self):
        with self.assertRaisesRegex(edged.EdgedError, "is it running"):
            edged.Client(self.path).status()
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(self.path)
        dead.close()
        with self.assertRaisesRegex(edged.EdgedError, "is it running"):
            edged.Client(self.path).status()

    def test_silence_and_garbage(self):
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(self.path)
        listener.listen()
        with self.assertRaisesRegex(edged.EdgedError, "did not answer .* within 0.05s: is it busy"):
            edged.Client(self.path, timeout=0.05).status()
        with self.assertRaisesRegex(edged.EdgedError, "the order may still be done"):
            edged.Client(self.path, timeout=0.05).drain({})

        def garbage():
            for _ in range(3):  # the first two are those that gave up
                conn, _ = listener.accept()
                try:
                    conn.recv(100)
                    conn.sendall(b"SSH-2.0-x\r\n")
                except OSError:
                    pass
                conn.close()

        thread = threading.Thread(target=garbage)
        thread.start()
        self.addCleanup(thread.join)
        with self.assertRaisesRegex(edged.EdgedError, "does not speak HTTP|broke the connection"):
            edged.Client(self.path, timeout=5).status()

    def test_a_byte_now_and_then(self):
        """The answer as a whole has the timeout: no byte is late by itself."""
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(self.path)
        listener.listen()
        for head in (b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"):
            def trickle(head=head):
                conn, _ = listener.accept()
                with conn:
                    try:
                        conn.recv(1000)
                        conn.sendall(head)
                        while not threading.Event().wait(0.01):
                            conn.sendall(b"x")
                    except OSError:
                        pass

            thread = threading.Thread(target=trickle)
            thread.start()
            with self.subTest(head=head), self.assertRaisesRegex(edged.EdgedError, "did not answer .* within 0.2s"):
                edged.Client(self.path, timeout=0.2).status()
            thread.join()

    def test_what_is_not_understood(self):
        for body, want in (
            (b'{"guard": {"fresh_ns": Infinity}}', "is not JSON"), (b'{"x": NaN}', "is not JSON"), (b"[" * 200000, "is not JSON"),
            (b'{"alarms": "none"}', r"not what this collection knows of edged \(alarms is str, not a list\): are the two of versions"),
        ):
            client = self.serve(200, body)
            client.max_answer = 1 << 20
            with self.assertRaisesRegex(edged.EdgedError, want):
                client.status()
            self.doCleanups()
            self.setUp()


if __name__ == "__main__":
    unittest.main()
