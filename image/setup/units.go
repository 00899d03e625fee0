package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// unitsDir is the folder of a tree with what changes units and settings of systemd:
// the image has them on a root that cannot be written to.
const unitsDir = "units"

// settings are what the files of one folder below unitsDir may say: keys by section.
type settings map[string][]string

// tunable is what of a unit may be changed. A key that systemd does not know would be
// left out with a line in its log, and nobody would see: so only these are taken.
func tunable() settings {
	return settings{
		"Unit": {"After", "ConditionPathExists", "Wants"},
		"Service": slices.Concat(walls(), strings.Fields(`AllowedCPUs CPUAffinity CPUQuota CPUWeight Environment IOWeight LimitCORE LimitNOFILE
		LogLevelMax LogRateLimitBurst LogRateLimitIntervalSec MemoryHigh MemoryLow MemoryMax MemoryMin MemorySwapMax Nice OOMScoreAdjust
		Restart RestartSec TasksMax TimeoutStartSec TimeoutStopSec`)),
	}
}

// walls are the keys that take something of a unit's sandbox away, or run another
// program: they are taken, and said.
func walls() []string {
	return strings.Fields(`AmbientCapabilities BindPaths BindReadOnlyPaths CapabilityBoundingSet DeviceAllow DevicePolicy ExecStart
	InaccessiblePaths IPAddressAllow IPAddressDeny PrivateDevices PrivateNetwork PrivateUsers ReadOnlyPaths ReadWritePaths RestrictAddressFamilies
	SupplementaryGroups SystemCallFilter`)
}

// daemonConfs are settings that are in no unit.
func daemonConfs() map[string]settings {
	return map[string]settings{
		"journald.conf.d":  {"Journal": strings.Fields("Compress ForwardToConsole MaxFileSec MaxLevelConsole MaxLevelStore MaxRetentionSec RateLimitBurst RateLimitIntervalSec RuntimeMaxUse SystemKeepFree SystemMaxFileSize SystemMaxUse")},
		"timesyncd.conf.d": {"Time": strings.Fields("ConnectionRetrySec FallbackNTP NTP PollIntervalMaxSec PollIntervalMinSec RootDistanceMaxSec SaveIntervalSec")},
		"resolved.conf.d":  {"Resolve": strings.Fields("Cache DNS DNSOverTLS DNSSEC Domains FallbackDNS LLMNR MulticastDNS")},
	}
}

// ownUnits are ours, without those that bring a box back: nothing in a configuration
// may keep it from being taken back. Nor those that start before edge-setup has put the
// configuration in force, as edge-watchdog does: they would never see it.
func ownUnits() []string {
	return []string{"edge-leave", "edge-tune", "edgebgp", "edged", "edgeproxy"}
}

// othersUnits are started again when they change, as serial-getty@ttySN is.
func othersUnits() []string {
	return []string{"edge-console", "ssh", "systemd-journald", "systemd-resolved", "systemd-timesyncd"}
}

// isSerial says that a unit is the login of a serial port.
func isSerial(name string) bool {
	port, ok := strings.CutPrefix(name, "serial-getty@ttyS")
	return ok && port != "" && len(port) < 4 && strings.Trim(port, "0123456789") == ""
}

// unitOf is the unit that goes by the files of a folder below unitsDir, and what they
// may say; ok is false if there is none.
func unitOf(folder string) (unit string, may settings, ok bool) {
	if conf, known := daemonConfs()[folder]; known {
		return "systemd-" + strings.TrimSuffix(folder, ".conf.d") + ".service", conf, true
	}
	name, is := strings.CutSuffix(folder, ".service.d")
	if !is || !slices.Contains(ownUnits(), name) && !slices.Contains(othersUnits(), name) && !isSerial(name) {
		return "", nil, false
	}
	return name + ".service", tunable(), true
}

// unitFiles is the remedy for a file that changes no unit.
func unitFiles() string {
	return "expected units/NAME.service.d/FILE.conf with NAME of " + strings.Join(slices.Concat(ownUnits(), othersUnits()), ", ") +
		" or serial-getty@ttySN, or units/FOLDER/FILE.conf with FOLDER of " + strings.Join(sortedKeys(daemonConfs()), ", ")
}

// folderOf is the folder of a file below unitsDir.
func folderOf(name string) string { return path.Base(path.Dir(name)) }

// checkUnits judges all that changes units.
func checkUnits(t Tree) (problems Problems) {
	for _, name := range t.under(unitsDir) {
		if _, may, ok := unitOf(folderOf(name)); !ok {
			problems.at(name, unitFiles(), "this unit cannot be changed by a configuration")
		} else {
			problems = append(problems, checkUnitFile(name, t[name], may)...)
		}
	}
	return problems
}

func checkUnitFile(name string, src []byte, may settings) (problems Problems) {
	fail := func(line int, remedy, format string, args ...any) {
		problems = append(problems, Problem{File: name, Line: line, Message: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	section, n := "", 0
	var start command
	for line := range strings.Lines(string(src)) {
		n++
		line = strings.TrimSpace(line)
		key, value, assigns := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case strings.ContainsFunc(line, notText):
			fail(n, "", "it has control characters: for systemd a line ends at some of them")
		case line == "", line[0] == '#', line[0] == ';':
		case strings.HasSuffix(line, `\`):
			fail(n, "", "a line that goes on in the next one is not taken here: write it as one")
		case line[0] == '[':
			section = strings.Trim(line, "[]")
			if may[section] == nil || line != "["+section+"]" {
				fail(n, "", "%.60q is none of the sections [%s]", line, strings.Join(sortedKeys(may), "], ["))
			}
		case !assigns || section == "":
			fail(n, "", "expected [SECTION], then lines of KEY=VALUE")
		case may[section] != nil && !slices.Contains(may[section], key):
			fail(n, "expected one of "+strings.Join(may[section], ", "), "%.60q cannot be set in [%s] by a configuration", key, section)
		case key == "Wants" && value != "" && value != leaveUnit:
			fail(n, "", "the only unit that may be wanted is %s", leaveUnit)
		case key == "ExecStart":
			if why := start.add(value); why != "" {
				fail(n, "write a line ExecStart= and then one with the program, ExecStart=/PATH", "%s: systemd refuses the whole unit then", why)
			}
		}
	}
	if start.cleared && start.programs == 0 {
		fail(n, "write a line ExecStart=/PATH behind ExecStart=", "no program is left: systemd refuses the whole unit then")
	}
	return problems
}

func notText(r rune) bool { return r != '\t' && unicode.IsControl(r) }

// command is what the lines ExecStart= of a file come to. A unit that has two, or none, is
// not started any more, and goes on running until the box is booted anew.
type command struct {
	cleared  bool
	programs int
}

// add takes a value, and says what is wrong with it.
func (c *command) add(value string) string {
	if value == "" {
		*c = command{cleared: true}
		return ""
	}
	c.programs++
	switch {
	case !strings.HasPrefix(strings.TrimLeft(value, "-:+!|"), "/"):
		return "it does not begin with the path of a program"
	case !c.cleared:
		return "it comes beside the program that the unit has"
	case c.programs > 1:
		return "it is a second program"
	}
	return ""
}

// wallNotes say which sandboxes are changed: it is seldom meant to stay.
func wallNotes(t Tree) (out []string) {
	for _, name := range t.under(unitsDir) {
		var keys []string
		for line := range strings.Lines(string(t[name])) {
			key, _, _ := strings.Cut(strings.TrimSpace(line), "=")
			if key = strings.TrimSpace(key); slices.Contains(walls(), key) && !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
		if unit, _, ok := unitOf(folderOf(name)); ok && len(keys) > 0 {
			out = append(out, fmt.Sprintf("%s: %s changes what %s may do: systemd-analyze security %s", name, strings.Join(keys, ", "), unit, unit))
		}
	}
	return out
}

// ChangedUnits are the units that a and b have other settings for, in order.
func ChangedUnits(a, b Tree) (out []string) {
	for _, pair := range [][2]Tree{{a, b}, {b, a}} {
		for _, name := range pair[0].under(unitsDir) {
			other, had := pair[1][name]
			unit, _, ok := unitOf(folderOf(name))
			if ok && (!had || string(other) != string(pair[0][name])) && !slices.Contains(out, unit) {
				out = append(out, unit)
			}
		}
	}
	slices.Sort(out)
	return out
}

// leaveUnit is the only unit that another may want.
const leaveUnit = "edge-leave.service"

// wanted are the units that others want by t. They have to be started: at boot the jobs of
// the others are queued already, and systemd does not look again at what they want.
func wanted(t Tree) []string {
	for _, name := range t.under(unitsDir) {
		for line := range strings.Lines(string(t[name])) {
			key, value, _ := strings.Cut(line, "=")
			if strings.TrimSpace(key) == "Wants" && strings.TrimSpace(value) == leaveUnit {
				return []string{leaveUnit}
			}
		}
	}
	return nil
}

// placedUnit is where below Run a file stands. The name is one that no file of the
// image has: it would be gone from sight.
func placedUnit(name string) string {
	folder := folderOf(name)
	at := "systemd/system"
	if _, conf := daemonConfs()[folder]; conf {
		at = "systemd"
	}
	return path.Join(at, folder, "50-config-"+path.Base(name))
}

// units has what t says of units in force, and nothing that an earlier configuration
// had said. Ours are started again by who applies the configuration, in their order.
func (p Place) units(t Tree) error {
	before, err := os.ReadFile(filepath.Join(p.Run, unitList))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("place settings of units: %w", err)
	}
	now := Tree{}
	for _, name := range t.under(unitsDir) {
		now[placedUnit(name)] = t[name]
	}
	all := slices.Compact(slices.Sorted(slices.Values(append(now.names(), strings.Fields(string(before))...))))
	if len(all) == 0 {
		return nil
	}
	// The list is written first, so that it never lacks a file that is there.
	err = p.file(unitList, []byte(strings.Join(all, "\n")), access{mode: 0o644})
	changed, again := false, []string{}
	for _, name := range all {
		old, readErr := os.ReadFile(filepath.Join(p.Run, name))
		content, has := now[name]
		if has == (readErr == nil) && string(old) == string(content) {
			continue
		}
		changed = true
		if unit, _, ok := unitOf(folderOf(name)); ok && !slices.Contains(again, unit) && !slices.Contains(ownUnits(), strings.TrimSuffix(unit, ".service")) {
			again = append(again, unit)
		}
		if has {
			err = errors.Join(err, p.file(name, content, access{mode: 0o644}))
		} else {
			err = errors.Join(err, p.remove(name))
		}
	}
	if changed {
		err = errors.Join(err, p.System.ReloadUnits(wanted(t), again...))
	}
	return errors.Join(err, p.file(unitList, []byte(strings.Join(now.names(), "\n")), access{mode: 0o644}))
}
