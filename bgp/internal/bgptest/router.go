package bgptest

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Daemon is how a daemon of a router is started. In Dir, which is its own or
// that of the FRR it belongs to, are its configuration, sockets and log.
type Daemon struct {
	Dir    string
	Before []string // what runs it: chrt, with arguments; nil: nothing
	More   []string // further arguments
}

// answers waits until a daemon that was started just now says word. On a busy
// box a start may take seconds.
func answers(t testing.TB, word string, ask func() string) {
	t.Helper()
	Poll(20*time.Millisecond).Eventually(t, func() string {
		if out := ask(); !strings.Contains(out, word) {
			return out
		}
		return ""
	})
}

// StartBIRD starts a BIRD 2 with the bird.conf that is in its folder, and waits
// until it answers.
func (s *Space) StartBIRD(t testing.TB, d Daemon) *Process {
	t.Helper()
	args := slices.Concat(d.Before, []string{"bird", "-f", "-c", d.Dir + "/bird.conf", "-s", d.Dir + "/ctl", "-P", d.Dir + "/pid"}, d.More)
	p := s.Start(t, d.Dir+"/bird.log", args...)
	answers(t, "Daemon is up", func() string { return Birdc(d.Dir, "show status") })
	return p
}

// Birdc is the answer of the BIRD in a folder to a command, or the error as
// text.
func Birdc(dir string, cmd ...string) string {
	out, err := exec.Command("birdc", append([]string{"-s", dir + "/ctl"}, cmd...)...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("birdc: %v: %s", err, out)
	}
	return string(out)
}

// FRRDir is a new folder with the configurations of daemons of FRR, by name, and
// one of zebra, without which none runs. It belongs to the user of FRR: the
// daemons give up root.
func FRRDir(t testing.TB, configs map[string]string) string {
	t.Helper()
	dir := TempDir(t)
	Must(t, os.WriteFile(dir+"/zebra.conf", []byte("log stdout\n"), 0o644))
	for daemon, text := range configs {
		Must(t, os.WriteFile(dir+"/"+daemon+".conf", []byte(text), 0o644))
	}
	u, err := user.Lookup("frr")
	Must(t, err)
	uid, err := strconv.Atoi(u.Uid)
	Must(t, err)
	Must(t, os.Chown(dir, uid, -1))
	return dir
}

// StartFRR starts a daemon of FRR in a folder of FRRDir, and waits until it
// answers; zebra is the first to start.
func (s *Space) StartFRR(t testing.TB, daemon string, d Daemon) *Process {
	t.Helper()
	args := slices.Concat(d.Before, []string{
		"/usr/lib/frr/" + daemon, "-f", d.Dir + "/" + daemon + ".conf", "-i", d.Dir + "/" + daemon + ".pid",
		"-z", d.Dir + "/zserv", "--vty_socket", d.Dir, "-A", "127.0.0.1", "-P", "0",
	}, d.More)
	p := s.Start(t, d.Dir+"/"+daemon+".log", args...)
	answers(t, "FRRouting", func() string { return Vtysh(d.Dir, daemon, "show version") })
	return p
}

// Vtysh is the answer of a daemon of the FRR in a folder to a command, or the
// error as text.
func Vtysh(dir, daemon, cmd string) string {
	out, err := exec.Command("vtysh", "--vty_socket", dir, "-d", daemon, "-c", cmd).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("vtysh: %v: %s", err, out)
	}
	return string(out)
}
