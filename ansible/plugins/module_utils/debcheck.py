# SPDX-License-Identifier: Apache-2.0
"""Everything that can be wrong with a package, asked before anything is changed."""

from __future__ import annotations

import os
import subprocess
import tarfile

from ansible_collections.catchment.edge.plugins.module_utils.debbox import PACKAGE, Refused

FORCE = ("--force-confdef", "--force-confold")  # what an operator has changed below /etc stays
SPARE = 64 << 20  # bytes that a disk is to have left
CHECKS = 60  # seconds that the new edgectl has to check the configuration
_EDGECTL = ("./usr/bin/edgectl", "usr/bin/edgectl")


def control(box, path):
    """What the package says that it is."""
    rc, out, err = box.run(["dpkg-deb", "--show", "--showformat=${Package}\\n${Version}\\n${Architecture}\\n${Installed-Size}\\n", path])
    lines = out.splitlines()
    if rc != 0 or len(lines) < 4:
        raise Refused(f"{path} is no package, or is damaged: {_line(err)}")
    size = int(lines[3]) if lines[3].isdigit() else 0
    return {"package": lines[0], "version": lines[1], "arch": lines[2], "kib": size}


def judge(is_it, version, arch):
    """Why a package is not the one that is wanted; None if it is."""
    if is_it["package"] != PACKAGE:
        return f"it is the package {is_it['package']}, and {PACKAGE} is wanted"
    if is_it["arch"] not in (arch, "all"):
        return f"it is for {is_it['arch']}, and this box is {arch}"
    if is_it["version"] != version:
        return f"it is version {is_it['version']}, and {version} is wanted"
    return None


def package(box, path, version):
    """Refused says why it would not do; nothing has been changed then."""
    is_it = control(box, path)
    why = judge(is_it, version, box.arch())
    if why:
        raise Refused(f"{path} is refused: {why}. Nothing was changed")
    if box.installed()["want"] == "hold":
        raise Refused(f"the package is held on this box, so somebody wants it to stay: apt-mark unhold {PACKAGE}. Nothing was changed")
    _room(is_it["kib"] << 10)
    _configuration(box, path, version)
    if box.installed()["version"] != version:
        _installs(box, path)


def _room(size):
    for at in ("/usr", "/var"):
        s = os.statvfs(at)
        if s.f_bavail * s.f_frsize < size + SPARE:
            raise Refused(f"{at} has {s.f_bavail * s.f_frsize >> 20} MiB free, and the package takes {size >> 20} MiB while it replaces the one before, "
                          f"with {SPARE >> 20} MiB to spare: make room. Nothing was changed")


def _installs(box, path):
    """dpkg fetches nothing, so all that it depends on is to be here."""
    rc, out, err = box.run(["dpkg", "--dry-run", *FORCE, "--install", path])
    if rc != 0:
        raise Refused(f"dpkg would not install {path}: {_line(err or out)}. Nothing was changed")
    rc, out, err = box.run(["apt-get", "--simulate", "--quiet", "--no-install-recommends", "--allow-downgrades", "-o", "Debug::NoLocking=1", "install", path])
    if rc != 0:
        raise Refused(f"apt-get would not install {path}: {_line(err or out)}. Nothing was changed")
    also = sorted({words[1] for words in map(str.split, out.splitlines()) if len(words) > 1 and words[0] in ("Inst", "Remv") and words[1] != PACKAGE})
    if also:
        raise Refused(f"{path} would have other packages installed or removed: {', '.join(also)}. Do that first; nothing was changed")


def _configuration(box, path, version):
    """The new version is asked whether it takes the configuration. It comes out of the
    package for a moment, to where programs may be run."""
    program = os.path.join(box.keep, "edgectl.new")
    try:
        extract(path, program)
        if not box.configured():
            return
        rc, out, err = box.bounded(CHECKS, [program, "check", box.config])
        if rc in (126, 127):
            raise Refused(f"edgectl of {version} cannot be run: {_line(err or out)}. Nothing was changed")
        if rc != 0:
            raise Refused(f"{version} refuses {box.config}, so that edged would not start: {_line(out + err)}. Mend it first; nothing was changed")
    finally:
        if os.path.lexists(program):
            os.unlink(program)


def extract(path, to):
    """edgectl of a package. The whole archive is read, so one that is cut is found."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        try:
            with tarfile.open(fileobj=p.stdout, mode="r|") as tar:
                for member in tar:
                    if member.name in _EDGECTL and member.isfile():
                        _write(tar.extractfile(member), to)
            p.stdout.read()
        except tarfile.TarError as err:
            raise Refused(f"{path} is damaged: {err}. Nothing was changed") from None
        said = p.stderr.read()
    if p.returncode != 0:
        raise Refused(f"{path} is damaged: {_line(said.decode(errors='replace'))}. Nothing was changed")
    if not os.path.exists(to):
        raise Refused(f"{path} has no /usr/bin/edgectl: it is none of ours. Nothing was changed")


def _write(source, to):
    with os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "wb") as f:
        while True:
            block = source.read(1 << 20)
            if not block:
                return
            f.write(block)


def _line(text):
    """What a program says, in one line that is not too long."""
    return " ".join(text.split())[-600:] or "it does not say why"
