// Package version tells which build a command is. It owns nothing and reads
// only what the Go tool wrote into the binary. All four commands use it.
package version

import "runtime/debug"

// String returns the module version, or the first 12 digits of the commit with
// "+dirty" where the tree had changes, or "devel".
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	rev, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			rev = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	switch {
	case rev != "":
		return rev + dirty
	case info.Main.Version != "":
		return info.Main.Version
	}
	return "devel"
}
