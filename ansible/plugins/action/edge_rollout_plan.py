# SPDX-License-Identifier: Apache-2.0
"""Decides on the controller in which order nodes are taken, and whether a batch may begin."""

from __future__ import annotations

from ansible_collections.catchment.edge.plugins.module_utils import rollout_plan, rollout_soak, rollout_text, rollout_times
from ansible_collections.catchment.edge.plugins.plugin_utils.controller import ControllerAction, Refused, flag, names


class ActionModule(ControllerAction):
    OPTIONS = ("state", "fleet", "looks", "facts", "samples", "version", "owner", "back", "canary", "waves", "leave_out", "allow_unhealthy",
               "newest", "unproven", "times", "limits", "batch", "failed", "left_out", "budget")

    def decide(self, args):
        looks = {n: a for n, a in (args.get("looks") or {}).items() if isinstance(a, dict)}
        fleet = args.get("fleet") or {}
        loads = {n: s.get("rate") for n, s in (args.get("samples") or {}).items() if isinstance(s, dict)}
        if args.get("state", "made") == "gate":
            why = rollout_plan.gate(fleet, looks, loads, names(args.get("batch")), args.get("failed") or {}, args.get("left_out") or {},
                                    int(args.get("budget") or 0), str(args.get("owner") or ""), flag(args.get("allow_unhealthy")))
            return {"changed": False, "why_not": why or ""}
        if not args.get("version"):
            raise Refused("version: it is needed")
        wish = rollout_plan.Wish(
            str(args["version"]), str(args.get("owner") or ""), flag(args.get("back")), str(args.get("canary") or ""), names(args.get("waves", rollout_plan.WAVES)),
            names(args.get("leave_out")), flag(args.get("allow_unhealthy")), names(args.get("newest")), names(args.get("unproven")))
        rollout_soak.limits_of(args.get("limits"))  # a slip is found before anything begins
        plan = rollout_plan.make(fleet, looks, args.get("facts") or {}, loads, wish)
        refused, told = rollout_times.judge(args.get("times") or {})
        plan.update(refused=refused + plan["refused"], told=plan["told"] + told)
        return dict(plan, changed=False, text=rollout_text.plan(plan, wish.version, wish.back))
