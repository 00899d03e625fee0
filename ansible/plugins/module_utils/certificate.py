# SPDX-License-Identifier: Apache-2.0
"""Until when a certificate is valid, read from its PEM without any library: the
targets have Python's standard library only, which does not show it."""

from __future__ import annotations

import binascii
import datetime
import re

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.S)
_SEQUENCE, _VERSION, _UTC, _GENERALIZED = 0x30, 0xA0, 0x17, 0x18


def not_after(text):
    """Seconds since the epoch at which the first certificate of a chain to end does.
    ValueError says what is wrong."""
    found = _PEM.findall(text)
    if not found:
        raise ValueError("it has no certificate in PEM")
    return min(_end(binascii.a2b_base64(re.sub(r"\s", "", body))) for body in found)


def _end(der):
    certificate, _ = _open(der, 0, _SEQUENCE)
    tbs, _ = _open(certificate, 0, _SEQUENCE)
    at = 0
    if tbs and tbs[0] == _VERSION:
        at = _skip(tbs, at)
    for _ in ("serial number", "algorithm", "issuer"):
        at = _skip(tbs, at)
    validity, _ = _open(tbs, at, _SEQUENCE)
    return _time(validity, _skip(validity, 0))


def _header(der, at):
    """Tag, and where the content begins and ends (X.690 section 8.1)."""
    if at + 2 > len(der):
        raise ValueError("its certificate is cut short")
    tag, length, begin = der[at], der[at + 1], at + 2
    if length & 0x80:
        n = length & 0x7F
        if not 1 <= n <= 4:
            raise ValueError("its certificate has a length that is none")
        length, begin = int.from_bytes(der[begin:begin + n], "big"), begin + n
    if begin + length > len(der):
        raise ValueError("its certificate is cut short")
    return tag, begin, begin + length


def _open(der, at, want):
    tag, begin, end = _header(der, at)
    if tag != want:
        raise ValueError("it is no certificate (X.509)")
    return der[begin:end], end


def _skip(der, at):
    return _header(der, at)[2]


def _time(der, at):
    tag, begin, end = _header(der, at)
    text = der[begin:end].decode("ascii", "replace")
    if tag == _UTC:  # years 1950 to 2049 (RFC 5280 section 4.1.2.5.1)
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED:
        raise ValueError("its certificate has no end")
    try:
        t = datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ")
    except ValueError:
        raise ValueError(f"the end of its certificate, {text!r}, is no time") from None
    return t.replace(tzinfo=datetime.timezone.utc).timestamp()
