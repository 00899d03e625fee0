package setup

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// screen is the first virtual terminal, which a screen shows.
const screen = "tty1"

// Terminals are those on which people may sit: the screen, the serial ports behind
// which there is hardware (the kernel names some of type 0 that do not exist), and what
// else is the kernel's console, such as hvc0, for which systemd has a login. sys is /sys.
func Terminals(sys string) (out []string) {
	class := filepath.Join(sys, "class/tty")
	if _, err := os.Stat(filepath.Join(class, screen)); err == nil {
		out = append(out, screen)
	}
	ports, _ := filepath.Glob(filepath.Join(class, "ttyS[0-9]*"))
	slices.SortFunc(ports, func(x, y string) int { return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)) })
	for _, port := range ports {
		kind, err := os.ReadFile(filepath.Join(port, "type"))
		if text := strings.TrimSpace(string(kind)); err == nil && text != "0" && text != "" {
			out = append(out, filepath.Base(port))
		}
	}
	active, _ := os.ReadFile(filepath.Join(class, "console/active"))
	for _, name := range strings.Fields(string(active)) {
		// tty0 is whatever the screen shows.
		if name != "tty0" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// loginUnit is the unit that has the login of a terminal.
func loginUnit(terminal string) string {
	if terminal == screen {
		return "getty@" + terminal + ".service"
	}
	return "serial-getty@" + terminal + ".service"
}

// logins are the files that let people in without a password.
func logins() map[string]string {
	return map[string]string{
		"systemd/system/getty@" + screen + ".service.d/edge-rescue.conf": rescueScreen,
		"systemd/system/serial-getty@.service.d/edge-rescue.conf":        rescueSerial,
	}
}

// login opens or closes the consoles. A shell that rescue had opened ends with it, but
// for the one in which somebody is making the change.
func (p Place) login(open bool) (err error) {
	changed := false
	for _, name := range sortedKeys(logins()) {
		_, statErr := os.Stat(filepath.Join(p.Run, name))
		if was := statErr == nil; was == open {
			continue
		}
		changed = true
		if open {
			err = errors.Join(err, p.file(name, []byte(logins()[name]), access{mode: 0o644}))
		} else {
			err = errors.Join(err, p.remove(name))
		}
	}
	if !changed {
		return err
	}
	var again []string
	for _, terminal := range Terminals(p.Sys) {
		if terminal != p.Terminal {
			again = append(again, loginUnit(terminal))
		}
	}
	return errors.Join(err, p.System.ReloadUnits(nil, again...))
}

// issueTo is the text above the logins; empty: only the usual. Those that wait for a
// name show it anew (agetty(8), --reload).
func (p Place) issueTo(text string) error {
	if p.Issue() == text {
		return nil
	}
	err := p.remove(issueFile)
	if text != "" {
		err = p.file(issueFile, []byte(text), access{mode: 0o644})
	}
	if err != nil {
		return err
	}
	now := time.Now()
	name := filepath.Join(p.Run, "agetty.reload")
	if err := os.Chtimes(name, now, now); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err // nobody waits where there is no such file
	}
	return nil
}

// TerminalOf is the name of the terminal that controls a process, by the line of
// /proc/PID/stat; "" if it has none that Terminals would name. sys is /sys.
func TerminalOf(stat []byte, sys string) string {
	// The name of the program stands in brackets and may have any in it.
	rest := string(stat[strings.LastIndex(string(stat), ")")+1:])
	fields := strings.Fields(rest)
	if len(fields) < 5 {
		return ""
	}
	device, ok := deviceOf(fields[4]) // tty_nr, proc_pid_stat(5)
	if !ok {
		return ""
	}
	to, err := os.Readlink(filepath.Join(sys, "dev/char", device))
	if name := path.Base(to); err == nil && slices.Contains(Terminals(sys), name) {
		return name
	}
	return ""
}

// deviceOf takes the number of a device of /proc apart: "MAJOR:MINOR".
func deviceOf(number string) (string, bool) {
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n == 0 {
		return "", false
	}
	dev := uint64(uint32(n)) // printed with a sign
	return fmt.Sprintf("%d:%d", dev>>8&0xfff, dev&0xff|dev>>12&0xfff00), true
}
