# SPDX-License-Identifier: Apache-2.0
"""What a soak makes of the counters of a node and of the others."""

import unittest

import collection_path  # noqa: F401
import a_status

from ansible_collections.catchment.edge.plugins.module_utils import readiness, rollout_soak

METRICS = """# HELP edge_proxy_requests_total Requests answered, by class of status.
# TYPE edge_proxy_requests_total counter
edge_proxy_requests_total{class="2xx"} 90
edge_proxy_requests_total{class="5xx"} 10
edge_proxy_region_requests_total{region="east",class="5xx"} 10
edge_proxy_request_duration_seconds_bucket{le="0.001"} 50
edge_proxy_request_duration_seconds_bucket{le="0.002"} 100
edge_proxy_request_duration_seconds_bucket{le="+Inf"} 100
edge_proxy_request_duration_seconds_sum 0.1
edge_proxy_tls_handshakes_total{kind="full"} 7
edge_proxy_tls_handshakes_total{kind="resumed"} 3
edge_proxy_tls_handshake_errors_total 2
edge_proxy_panics_total 1
go_goroutines 12
"""


def sample(requests=0, errors=0, slow=0, handshake_errors=0, panics=0):
    """Slow ones take 4 s, the others 8 ms."""
    latency = {"0.008": requests - slow, "4.096": requests, "+Inf": requests}
    return {"counters": {"requests": requests, "errors": errors, "handshakes": requests, "handshake_errors": handshake_errors, "panics": panics, "latency": latency}}


NONE = sample()
LIMITS = rollout_soak.LIMITS


class Counters(unittest.TestCase):
    def test_read(self):
        got = rollout_soak.counters(METRICS)
        self.assertEqual(got, {"requests": 100, "errors": 10, "handshakes": 10, "handshake_errors": 2, "panics": 1, "latency": {"0.001": 50, "0.002": 100, "+Inf": 100}})
        self.assertEqual(rollout_soak.quantile(got["latency"], 75), 0.0015)
        self.assertIsNone(rollout_soak.quantile({}, 95))
        self.assertIsNone(rollout_soak.quantile({"+Inf": 0}, 95))
        self.assertEqual(rollout_soak.quantile({"1": 0, "+Inf": 10}, 95), 1.0)

    def test_what_is_no_number(self):
        odd = "".join(f"edge_proxy_panics_total {v}\n" for v in ("e", "+", "-.", "1e999", "+Inf", "NaN", "1.2.3"))
        odd += "".join('edge_proxy_request_duration_seconds_bucket{le="%s"} 5\n' % le for le in ("abc", "", "NaN", "-Inf"))
        odd += 'edge_proxy_requests_total{class="2xx"} --1\nedge_proxy_request_duration_seconds_bucket 9\n'
        self.assertEqual(rollout_soak.counters(odd), rollout_soak.counters(""))
        self.assertEqual(rollout_soak.counters(METRICS + odd), rollout_soak.counters(METRICS))

    def test_a_restart_begins_at_nothing(self):
        before, after = sample(1000, 50)["counters"], sample(100, 3)["counters"]
        self.assertEqual(rollout_soak.between(before, after), after)
        got = rollout_soak.between(sample(100, 3)["counters"], before)
        self.assertEqual((got["requests"], got["errors"], got["latency"]["+Inf"]), (900, 47, 900))


class Starts(unittest.TestCase):
    def test_a_daemon_that_was_started_again(self):
        first, status = {}, a_status.status()
        self.assertEqual(rollout_soak.started_again(first, readiness.starts(status)), [])
        # edged has not heard of edgeproxy before.
        status["proxy"]["started"] = a_status.at(50)
        self.assertEqual(rollout_soak.started_again(first, readiness.starts(status)), [])
        for name, doc in (("edged", status), ("edgebgp", status["speaker"]), ("edgeproxy", status["proxy"])):
            was, doc["started"] = doc["started"], a_status.at(1)
            self.assertEqual(rollout_soak.started_again(first, readiness.starts(status)), [f"{name} was started again: journalctl -u {name}"])
            doc["started"] = was

    def test_one_that_is_away_says_nothing(self):
        first = readiness.starts(a_status.status())
        self.assertEqual(rollout_soak.started_again(first, readiness.starts(a_status.status(speaker=None, proxy=None))), [])


class Judge(unittest.TestCase):
    def judge(self, mine, rest, watched=None, before=None, **limits):
        after = {"a1": mine, "b1": rest, "c1": rest}
        return rollout_soak.judge(["a1"], before or dict.fromkeys(after, NONE), after, {"a1": dict(NONE, **(watched or {}))}, dict(LIMITS, **limits))

    def good(self, words, *args, **more):
        failed, told = self.judge(*args, **more)
        self.assertEqual(failed, {})
        self.assertIn(words, told["a1"])

    def bad(self, words, *args, **more):
        failed, _ = self.judge(*args, **more)
        self.assertIn(words, failed["a1"])

    def test_errors(self):
        self.good("1000 requests, 4 errors, 95 % within", sample(1000, 4), sample(1000))
        self.bad("2.00 % of its 1000 requests ended with 5xx, and 0.00 % at the others", sample(1000, 20), sample(1000))
        # The origin fails, and everywhere.
        self.good("20 errors", sample(1000, 20), sample(1000, 15))
        self.bad("20.00 %", sample(1000, 200), sample(1000, 15))
        # Without the others, an error is still an error.
        self.bad("2.00 %", sample(1000, 20), sample())

    def test_latency(self):
        self.bad("of the others' within 8 ms", sample(1000, slow=100), sample(1000))
        self.good("95 % within 8 ms", sample(1000, slow=10), sample(1000))
        self.good("95 % within", sample(1000, slow=100), sample(1000, slow=90))
        self.good("its latency is not judged", sample(1000, slow=100), sample(10))

    def test_too_little_is_told(self):
        self.good("too little traffic to judge: 99 requests", sample(99, 90), sample(1000))
        self.bad("5xx", sample(99, 90), sample(1000), min_requests=50)
        self.good("not judged: no edgeproxy runs on it", {"counters": None, "absent": "no edgeproxy runs on it"}, sample(1000))
        self.good("it was not asked", sample(1000), sample(1000), before={"b1": NONE})

    def test_the_rest(self):
        self.bad("it was not ready in the soak: r1 is idle", sample(1000), sample(1000), {"unready": ["r1 is idle"]})
        self.bad("edgeproxy has panicked 1 times", sample(1000, panics=1), sample(1000))
        self.bad("TLS handshakes failed", sample(90, handshake_errors=60), sample(1000))
        self.good("1000 requests", sample(1000, handshake_errors=30), sample(1000))

    def test_what_was_not_seen_is_not_good(self):
        lost = {"unreachable": True, "msg": "the connection was\nlost"}
        self.bad("it was not seen to the end of the soak: the connection was lost", sample(1000), sample(1000), lost)
        self.bad("it was not seen to the end of the soak: the connection was lost", lost, sample(1000))
        self.bad("it has not answered", {}, sample(1000))
        after = {"a1": sample(1000), "b1": sample(1000)}
        failed, _ = rollout_soak.judge(["a1"], dict.fromkeys(after, NONE), after, {}, LIMITS)
        self.assertIn("it has not answered", failed["a1"])

    def test_limits(self):
        self.assertEqual(rollout_soak.limits_of({"min_requests": "7"}), dict(LIMITS, min_requests=7.0))
        for bad in ({"min_request": 7}, {"min_errors": "x"}):
            with self.assertRaises(ValueError):
                rollout_soak.limits_of(bad)


if __name__ == "__main__":
    unittest.main()
