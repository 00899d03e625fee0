// Package version tells which build a command is. It owns nothing and reads
// only what the build wrote into the binary. All four commands use it.
package version

import "runtime/debug"

// release is the version of a build that is handed out: the builds of the image
// and of the package set it (go build -ldflags "-X ....release=1.2.0"), since the
// Go tool knows only the commit. Nothing else writes it.
var release string

// String returns the release with the commit behind it ("1.2.0 (0123456789ab)"),
// or else that of the Go tool.
func String() string {
	built := fromBuild()
	switch {
	case release == "":
		return built
	case built == "devel", built == "(devel)":
		return release
	}
	return release + " (" + built + ")"
}

// fromBuild returns the first 12 digits of the commit with "+dirty" where the
// tree had changes, or the module version, or "devel".
func fromBuild() string {
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
