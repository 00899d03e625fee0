# SPDX-License-Identifier: Apache-2.0
"""Which version a box runs, which it has in store, and whether the one that runs is
good: the same facts of an appliance and of a Debian with the package. Pure."""

from __future__ import annotations

DAEMONS = ("edged", "edgebgp", "edgeproxy")


def facts(kind, **known):
    """All keys, so that who reads them need not ask whether one is there."""
    out = {"kind": kind, "running": None, "staged": None, "previous": None, "good": False, "why_not_good": [], "refused": {},
           "installed": None, "daemons": {}, "kept": [], "next": None, "boot_id": None, "room": None}
    out.update(known)
    out["good"] = not out["why_not_good"]
    return out


# Of an appliance.

def of_image(boot, slots, **more):
    """boot is appliance.facts, slots the answer of edgectl slots -o json, or None."""
    refused = {r["version"]: cause(r) for r in boot.get("refused") or [] if r.get("version")}
    return facts(
        "image", running=boot.get("version"), installed=boot.get("version"), staged=boot.get("staged"), next=boot.get("next"),
        previous=_other(boot, refused), refused=refused, why_not_good=_not_good(boot, slots or {}), **more)


def cause(refused):
    """Why a version is refused, in words."""
    check, why = refused.get("check"), " ".join((refused.get("reason") or "").split())
    if check == "operator":
        return "it was rolled back by hand" + (f": {why}" if why else "")
    if check == "boot":
        return "it never came to be judged" + (f": {why}" if why else "")
    return f"check {check}" + (f": {why}" if why else "")


def _other(boot, refused):
    """The version that edgectl rollback goes to. What is staged has not been booted yet,
    and its slot has no other any more."""
    for s in boot.get("slots") or []:
        if not s.get("runs") and s.get("state") in ("good", "aside") and s.get("version") and s["version"] not in refused:
            return s["version"]
    return None


def _not_good(boot, slots):
    if boot.get("error"):
        return [f"the state of this boot is not known: {boot['error']}"]
    if boot.get("good") is None:
        return ["the checks of this boot still run: journalctl -u edge-health"]
    if not boot["good"]:
        return [f"this boot is not good: {', '.join(boot.get('failed') or []) or 'no check is named'}; journalctl -u edge-health"]
    here = next((s for s in boot.get("slots") or [] if s.get("runs")), {})
    if here.get("state") not in ("good", "aside"):
        return [f"version {here.get('version')} is not blessed yet: systemctl status edge-resume systemd-bless-boot"]
    last = slots.get("upgrade") or {}
    if last.get("version") == here.get("version") and last.get("stage") in ("staged", "rebooting"):
        return ["the upgrade is not ended yet: systemctl status edge-resume"]
    return []


# Of a Debian with the package.

def of_deb(package, units, configured, silent, kept, notes, **more):
    """package is that of debbox.installed; units {name: {active, wanted, version}};
    silent are the reasons why edged does not do its work; kept the versions of packages
    on the box, notes what was written beside them."""
    wanted = {n: u for n, u in units.items() if u["active"] or u["wanted"]}
    versions = {n: u["version"] for n, u in wanted.items()}
    installed = package["version"] if package["status"] == "installed" else None
    running = _running(versions, installed, configured)
    staged = notes.get("staged")
    return facts(
        "deb", running=running, installed=installed, daemons=versions, kept=kept,
        staged=staged if staged in kept and staged != running else None,
        previous=_previous(running, installed, kept, notes.get("before")),
        why_not_good=_not_well(package, wanted, running, configured, silent), **more)


def _running(versions, installed, configured):
    """The version of all daemons; None while they differ, or one does not run."""
    if not configured or not versions:
        return installed
    said = set(versions.values())
    return said.pop() if len(said) == 1 else None


def _previous(running, installed, kept, before):
    """The version that the last change has replaced, as long as something of another
    runs; else the newest that is older. kept is in Debian's order."""
    if before in kept and before != running:
        return before
    if installed not in kept:
        return None
    older = kept[:kept.index(installed)]
    return older[-1] if older else None


def _not_well(package, wanted, running, configured, silent):
    if package["status"] != "installed":
        return [f"the package is {package['status'] or 'not installed'}: dpkg --configure -a, or install it"]
    if not configured:
        return ["there is no configuration: playbook site brings it"]
    out = [f"{n} does not run: systemctl status {n}" for n, u in sorted(wanted.items()) if not u["active"]]
    out += [f"{n} does not tell its version" for n, u in sorted(wanted.items()) if u["active"] and not u["version"]]
    if not wanted:
        out.append("none of the daemons is enabled: systemctl enable --now " + " ".join(DAEMONS))
    elif running is None and not out:
        out.append("the daemons are of different versions: " + stands(wanted))
    elif running is not None and running != package["version"]:
        out.append(f"{package['version']} is installed, and {running} still runs: the daemons were not restarted")
    return out + silent


def stands(units):
    """Which daemon runs which version, in words."""
    return ", ".join(f"{n} {u['version'] or 'of an unknown version'}" if u["active"] else f"{n} does not run" for n, u in sorted(units.items()))


# Going there.

def why_back(before, now, target):
    """Why a box that was to run target has come back in another version."""
    why = now["refused"].get(target)
    if why:
        return f"it went back to {now['running']} by itself and refuses {target} from now on: {why}"
    if now["running"] == before:
        return f"it has booted {now['running']} again, and does not say why: edgectl slots"
    return f"it runs {now['running']}"


def to_prune(kept, needed, most):
    """Which kept versions go, oldest first: those that are needed never do."""
    spare = [v for v in kept if v not in needed]
    return spare[:max(0, len(kept) - max(most, len(needed)))]
