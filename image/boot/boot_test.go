package boot

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge/image/slot"
)

// ukis reads names without edge_ and .efi.
func ukis(t testing.TB, names string) (out []slot.UKI) {
	t.Helper()
	for _, n := range strings.Fields(names) {
		u, ok := slot.ParseUKI("edge_" + n + ".efi")
		if !ok {
			t.Fatal(n)
		}
		out = append(out, u)
	}
	return out
}

func noBGP() []slot.Failure { return []slot.Failure{{Check: "bgp", Reason: "no peer is established"}} }

func TestJudge(t *testing.T) {
	byHand := []slot.Refused{{Version: "1.1.0", Check: slot.ByOperator}}
	for _, c := range []struct {
		name         string
		booted, esp  string // booted: the UKI that runs
		refused      []slot.Refused
		ok           bool
		good, reboot bool
		why          string
	}{
		{name: "good, under trial", booted: "1.2.0+2-1", esp: "1.1.0 1.2.0+2-1", ok: true, good: true, why: "all checks"},
		{name: "good, for long", booted: "1.2.0", esp: "1.2.0", ok: true, good: true, why: "all checks"},
		{name: "bad, with tries", booted: "1.2.0+2-1", esp: "1.1.0 1.2.0+2-1", reboot: true, why: "bgp: no peer is established; 2 tries are left, then 1.1.0"},
		{name: "bad, the last try", booted: "1.2.0+0-3", esp: "1.1.0 1.2.0+0-3", reboot: true, why: "no tries are left, so 1.1.0"},
		{name: "bad, good before", booted: "1.2.0", esp: "1.1.0 1.2.0", why: "was good before"},
		{name: "bad, alone", booted: "1.2.0+2-1", esp: "1.2.0+2-1", why: "there is no other version"},
		{name: "bad, and the other has failed", booted: "1.2.0+2-1", esp: "1.1.0+0-3 1.2.0+2-1", why: "1.1.0, has failed as well"},
		{name: "bad, and the other is under trial too", booted: "1.2.0+2-1", esp: "1.1.0+1-1 1.2.0+2-1", reboot: true, why: "then 1.1.0"},
		{name: "bad, after a forced way back", booted: "1.0.0+2-1", esp: "1.1.0+0 1.0.0+2-1", reboot: true, why: "then 1.1.0"},
		{name: "bad, after a rollback", booted: "1.0.0+2-1", esp: "1.1.0+0 1.0.0+2-1", refused: byHand, reboot: true, why: "then 1.1.0"},
		{name: "bad, after a rollback, the last try", booted: "1.0.0+0-3", esp: "1.1.0+0 1.0.0+0-3", refused: byHand, reboot: true, why: "so 1.1.0 is booted"},
		{name: "bad, and the older one was set aside", booted: "1.2.0+0-3", esp: "1.1.0+0 1.2.0+0-3", why: "this one would be booted again"},
		{name: "bad, and the ESP cannot be read", booted: "1.2.0+2-1", reboot: true, why: "then 1.1.0 is booted"},
		{name: "good, what was set aside and came back", booted: "1.1.0+0-1", esp: "1.0.0+0-3 1.1.0+0-1", ok: true, good: true, why: "all checks"},
		{name: "bad, what was set aside and came back", booted: "1.1.0+0-1", esp: "1.0.0+0-3 1.1.0+0-1", why: "has failed as well"},
	} {
		booted := ukis(t, c.booted)[0]
		f := Facts{Version: booted.Version, Slot: slot.A, UKIs: ukis(t, c.esp), Refused: c.refused}
		if booted.Counted {
			f.Counter = &booted
		}
		if c.esp == "" {
			f.Upgrade = &slot.Upgrade{Stage: slot.Rebooting, Version: booted.Version, From: "1.1.0"}
		}
		if !c.ok {
			f.Failed = noBGP()
		}
		got := Judge(f)
		if got.Good != c.good || got.Reboot != c.reboot || !strings.Contains(got.Why, c.why) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// TestJudgeNeverLoops: whatever is on the ESP, a version that is judged bad for ever
// is booted no more often than it has tries, and the box comes to rest.
func TestJudgeNeverLoops(t *testing.T) {
	names := []string{"", "1.1.0", "1.1.0+3", "1.1.0+0", "1.1.0+0-3", "1.1.0+1-2"}
	for _, a := range names {
		for _, b := range []string{"1.2.0", "1.2.0+3", "1.2.0+0", "1.2.0+0-3"} {
			all := ukis(t, a+" "+b)
			reboots := 0
			for ; reboots < 20; reboots++ {
				next, ok := slot.Next(all)
				if !ok {
					t.Fatal("nothing to boot")
				}
				f := Facts{Version: next.Version, Failed: noBGP()}
				for i := range all { // what systemd-boot does to the name
					if all[i] == next && next.Counted {
						all[i].Left, all[i].Done = max(0, next.Left-1), next.Done+1
						counted := all[i]
						f.Counter = &counted
					}
				}
				if f.UKIs = all; !Judge(f).Reboot {
					break
				}
			}
			if reboots > 7 {
				t.Errorf("%q and %q: %d reboots", a, b, reboots)
			}
		}
	}
}

// TestJudgeFullDisk: a box that is to stay serves, whatever has filled its disk.
func TestJudgeFullDisk(t *testing.T) {
	full := []slot.Failure{{Check: Disk, Reason: "/var is full"}}
	for _, c := range []struct {
		name, booted, esp string
		failed            []slot.Failure
		good, reboot      bool
	}{
		{name: "good before", booted: "1.1.0", esp: "1.1.0 1.2.0+0-3", failed: full, good: true},
		{name: "under trial", booted: "1.2.0+2-1", esp: "1.1.0 1.2.0+2-1", failed: full, reboot: true},
		{name: "what was set aside and came back", booted: "1.1.0+0-1", esp: "1.0.0+0-3 1.1.0+0-1", failed: full, good: true},
		{name: "and no BGP", booted: "1.1.0", esp: "1.1.0 1.2.0+0-3", failed: append(noBGP(), full...)},
	} {
		u := ukis(t, c.booted)[0]
		f := Facts{Version: u.Version, UKIs: ukis(t, c.esp), Failed: c.failed}
		if u.Counted {
			f.Counter = &u
		}
		v := Judge(f)
		if v.Good != c.good || v.Reboot != c.reboot {
			t.Errorf("%s: %+v", c.name, v)
		}
		if a := (Report{Facts: f, Judged: true, Verdict: v}).Alarms(); v.Good && (len(a) != 1 || a[0] != "disk: /var is full") {
			t.Errorf("%s: alarms %q", c.name, a)
		}
	}
}

// TestRefusals: the names on the EFI partition tell what nobody could write down.
func TestRefusals(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	trial := &slot.Upgrade{Stage: slot.Rebooting, Version: "1.2.0", From: "1.1.0", Since: since}
	noted := slot.Boot{ID: "x", Version: "1.2.0", Trial: since, Failed: []slot.Failure{{Check: Disk, Reason: "/var is full"}}}
	for _, c := range []struct {
		name, esp string
		facts     Facts
		want      string
	}{
		{name: "nothing", esp: "1.1.0 1.2.0"},
		{name: "staged", esp: "1.1.0 1.2.0+3", facts: Facts{Upgrade: trial}},
		{name: "its tries are used up", esp: "1.1.0 1.2.0+0-3", want: "1.2.0 boot"},
		{name: "it was left before that", esp: "1.1.0 1.2.0+1-2", facts: Facts{Upgrade: trial}, want: "1.2.0 boot"},
		{name: "with a judgement", esp: "1.1.0 1.2.0+0-3", facts: Facts{Boots: []slot.Boot{noted}}, want: "1.2.0 disk"},
		{name: "on record", esp: "1.1.0 1.2.0+0-3", facts: Facts{Refused: []slot.Refused{{Version: "1.2.0", Check: "bgp"}}}, want: "1.2.0 bgp"},
		{name: "set aside by an order", esp: "1.1.0 1.2.0+0"},
		{name: "the one that runs", esp: "1.1.0+0-1 1.0.0+0-3", want: "1.0.0 boot"},
	} {
		c.facts.Version, c.facts.UKIs = "1.1.0", ukis(t, c.esp)
		var got []string
		for _, r := range Refusals(c.facts) {
			got = append(got, r.Version+" "+r.Check)
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestCameBack(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	now := since.Add(time.Hour)
	up := func(s slot.Stage) *slot.Upgrade {
		return &slot.Upgrade{Stage: s, Version: "1.2.0", From: "1.1.0", Slot: slot.B, Since: since}
	}
	judged := func(version string, at time.Time, failed ...slot.Failure) slot.Boot {
		return slot.Boot{ID: at.String(), Version: version, Time: at, Good: len(failed) == 0, Failed: failed}
	}
	for _, c := range []struct {
		name    string
		upgrade *slot.Upgrade
		esp     string
		boots   []slot.Boot
		runs    string
		check   string // "": it has not come back
		reason  string
	}{
		{name: "never upgraded", esp: "1.1.0"},
		{name: "it runs", upgrade: up(slot.Rebooting), esp: "1.1.0 1.2.0+2-1", runs: "1.2.0"},
		{name: "it was good", upgrade: up(slot.Good), esp: "1.1.0 1.2.0"},
		{name: "known before", upgrade: up(slot.Failed), esp: "1.1.0 1.2.0+0-3"},
		{name: "not tried", upgrade: up(slot.Staged), esp: "1.1.0 1.2.0+3"},
		{name: "half written", upgrade: up(slot.Writing), esp: "1.1.0"},
		{name: "blessed, and then this one was chosen", upgrade: up(slot.Rebooting), esp: "1.1.0 1.2.0"},
		{name: "its UKI is gone", upgrade: up(slot.Rebooting), esp: "1.1.0"},
		{name: "panic", upgrade: up(slot.Rebooting), esp: "1.1.0 1.2.0+0-3", check: slot.NeverUp, reason: "booted 3 times and never came to be judged"},
		{name: "without a reboot by us", upgrade: up(slot.Staged), esp: "1.1.0 1.2.0+0-1", check: slot.NeverUp, reason: "booted once"},
		{name: "chosen by hand after a try", upgrade: up(slot.Rebooting), esp: "1.1.0 1.2.0+2-1", check: slot.NeverUp},
		{name: "no BGP", upgrade: up(slot.Rebooting), esp: "1.1.0 1.2.0+0-2",
			boots: []slot.Boot{judged("1.1.0", since, noBGP()...), judged("1.2.0", now, append(noBGP(), slot.Failure{Check: "xdp", Reason: "not attached"})...)},
			check: "bgp", reason: "no peer is established; xdp: not attached"},
		{name: "no BGP, and the clock was set back", upgrade: up(slot.Rebooting), esp: "1.1.0 1.2.0+0-2",
			boots: []slot.Boot{ofTrial(judged("1.2.0", since.Add(-time.Hour), noBGP()...), since)}, check: "bgp"},
		{name: "of a trial before, and the clock was set back", upgrade: up(slot.Rebooting), esp: "1.1.0 1.2.0+0-2",
			boots: []slot.Boot{ofTrial(judged("1.2.0", since.Add(time.Hour), noBGP()...), since.Add(time.Minute))}, check: slot.NeverUp},
		{name: "judged before this upgrade", upgrade: up(slot.Rebooting), esp: "1.1.0 1.2.0+0-2",
			boots: []slot.Boot{judged("1.2.0", since.Add(-time.Hour), noBGP()...), judged("1.1.0", since.Add(-time.Minute))}, check: slot.NeverUp},
		{name: "without a clock", upgrade: up(slot.Rebooting), esp: "1.1.0 1.2.0+0-2",
			boots: []slot.Boot{judged("1.1.0", since), ofTrial(judged("1.2.0", time.Unix(9, 0), noBGP()...), since), ofTrial(judged("1.2.0", time.Unix(7, 0), slot.Failure{Check: "xdp", Reason: "not attached"}), since)},
			check: "xdp", reason: "not attached"},
	} {
		f := Facts{Version: "1.1.0", Upgrade: c.upgrade, UKIs: ukis(t, c.esp), Boots: c.boots}
		if c.runs != "" {
			f.Version = c.runs
		}
		got := CameBack(f, now)
		if (got != nil) != (c.check != "") {
			t.Errorf("%s: %+v", c.name, got)
			continue
		}
		if got != nil && (got.Check != c.check || got.Version != "1.2.0" || !strings.Contains(got.Reason, c.reason)) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func ofTrial(b slot.Boot, since time.Time) slot.Boot {
	b.Trial = since
	return b
}

func TestReport(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := Report{Facts: Facts{Version: "1.1.0", Slot: slot.A, Refused: []slot.Refused{
		{Version: "1.0.0", When: at, Check: "boot", Reason: "old", Times: 1},
		{Version: "1.2.0", When: at, Check: "bgp", Reason: "no peer \"x\"\nis established", Times: 2},
		{Version: "1.3.0", When: at, Check: slot.ByOperator, Reason: "slow", Times: 1},
	}, Rollbacks: []slot.Rollback{{From: "1.2.0", Check: "bgp", Times: 2}, {From: "0.9.0", Check: "boot", Times: 3}},
		Failed: noBGP()}, Judged: true, Verdict: Verdict{Why: "bgp: no"}, Notes: []string{"a\x1b[2J"}}
	want := []string{
		"version 1.1.0 of slot a is not good: bgp: no",
		`version 1.2.0 has failed, and the box went back to 1.1.0: check bgp at 2026-01-02 03:04:05 UTC, 2 times by now: no peer "x" | is established`,
		"a | [2J",
	}
	if d := cmp.Diff(want, r.Alarms()); d != "" {
		t.Error(d)
	}
	for _, line := range []string{
		`edge_boot_version{version="1.1.0",slot="a"} 1`, "edge_boot_good 0", `edge_boot_check_failed{check="bgp"} 1`,
		`edge_boot_rollback_total{from="1.2.0",reason="bgp"} 2`, `edge_boot_rollback_total{from="0.9.0",reason="boot"} 3`,
		`edge_boot_refused{version="1.3.0",reason="operator"} 1`, `edge_boot_refused{version="1.2.0",reason="bgp"} 1`,
	} {
		if !strings.Contains(r.Metrics(), line+"\n") {
			t.Errorf("no %s in\n%s", line, r.Metrics())
		}
	}
	if strings.Contains(r.Metrics(), `rollback_total{from="1.3.0"`) {
		t.Error("an order of an operator counts as a rollback of the box")
	}
	for _, line := range []string{"Catchment 1.1.0, slot a: NOT GOOD", "refused: version 1.3.0, rolled back by hand at 2026-01-02 03:04:05 UTC: slow", "--force"} {
		if !strings.Contains(r.Motd(), line) {
			t.Errorf("no %q in\n%s", line, r.Motd())
		}
	}
	good := Report{Facts: Facts{Version: "1.3.1", Slot: slot.B, Refused: r.Refused}, Judged: true, Verdict: Verdict{Good: true}}
	if a := good.Alarms(); len(a) != 0 {
		t.Errorf("a version that has replaced the failed ones alarms: %v", a)
	}
	staged := Report{Facts: Facts{Version: "1.1.0", Upgrade: &slot.Upgrade{Stage: slot.Staged, Version: "1.4.0"}}}
	if a := staged.Alarms(); len(a) != 1 || !strings.Contains(a[0], "1.4.0 was staged") || strings.Contains(staged.Metrics(), "edge_boot_good") {
		t.Error(a, staged.Metrics())
	}
}
