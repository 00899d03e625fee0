package setup

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// rescueNetwork is how a box without a configuration can be reached: on fixed
// addresses of the link, and by whatever the link hands out. It is for every
// wired interface, physical or of a hypervisor (those have no Kind=).
const rescueNetwork = `# Made by edge-setup: the box has no configuration that it can use.
[Match]
Type=ether
Kind=!*

[Link]
RequiredForOnline=no

[Network]
DHCP=yes
IPv6AcceptRA=yes
LinkLocalAddressing=ipv6
Address=` + rescue4 + `/16
Address=` + rescue6 + `/64
`

// The addresses of a box in rescue.
const (
	rescue4 = "169.254.77.1"
	rescue6 = "fe80::77:1"
)

// rescueScreen and rescueSerial let whoever holds a console in as root. Only a box
// without a configuration and without a password does: who holds a console could boot
// another system as well.
const (
	rescueReason = `# Made by edge-setup: the box has neither a configuration nor a password.
[Service]
ExecStart=
`
	rescueScreen = rescueReason + `ExecStart=-/sbin/agetty --autologin root --noclear - $TERM
`
	rescueSerial = rescueReason + `ExecStart=-/sbin/agetty --autologin root --noclear 115200,57600,38400,9600 - $TERM
`
)

// issue is what the console shows above its login. agetty takes a backslash for
// an order, so there is none.
func issue(r Result, password bool, nics []string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	switch r.State {
	case OK:
		line("Catchment %s: ATTENTION: generation %d is in force, and something is wrong.", r.Version, r.Generation)
	case Rescue:
		line("Catchment %s: RESCUE: there is no configuration that this box can use. It announces nothing.", r.Version)
	default:
		line("Catchment %s: NOT CONFIGURED. It announces nothing.", r.Version)
	}
	line("")
	for _, e := range r.Errors {
		line("  %s", e)
	}
	if len(r.Errors) > 0 {
		line("")
	}
	if r.State == OK {
		line("Mend it and reboot, or: edgectl config apply FOLDER")
		return clean(b.String())
	}
	line("Reach it: ssh root@%s or root@%s%%INTERFACE from the same link, or the address that DHCP gave it.", rescue4, rescue6)
	for _, nic := range nics {
		line("  %s", nic)
	}
	if password {
		line("Log in here, or on another console, with the password of the configuration.")
	} else {
		line("Every console, screen and serial ports, is logged in as root: there is no password.")
	}
	line("Mend it: give credentials edge.*, a FAT or ISO volume labelled EDGECFG, or NoCloud user data, and reboot;")
	line("or copy a folder with edge.yaml, network/, authorized_keys and secrets/ to this box, then: edgectl config apply FOLDER")
	return clean(b.String())
}

// clean takes out of a text what a terminal or agetty would obey.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case r == '\\':
			return '/'
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return '?'
		}
		return r
	}, text)
}

// nics are the wired interfaces with the address that IPv6 gives each by itself
// (RFC 4291 appendix A), since the fixed ones are the same on all boxes.
func nics(sys string) (out []string) {
	links, _ := filepath.Glob(filepath.Join(sys, "class/net/*/device"))
	for _, device := range links {
		dir := filepath.Dir(device)
		b, err := os.ReadFile(filepath.Join(dir, "address"))
		if err != nil {
			continue
		}
		mac := strings.TrimSpace(string(b))
		text := fmt.Sprintf("%s  %s", filepath.Base(dir), mac)
		if own, ok := linkLocal(mac); ok {
			text += fmt.Sprintf("  %s%%INTERFACE", own)
		}
		out = append(out, text)
	}
	return out
}

func linkLocal(mac string) (netip.Addr, bool) {
	var m [6]byte
	if n, err := fmt.Sscanf(mac, "%02x:%02x:%02x:%02x:%02x:%02x", &m[0], &m[1], &m[2], &m[3], &m[4], &m[5]); err != nil || n != 6 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]}), true
}
