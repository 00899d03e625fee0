package health

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// shell is a command that runs a script.
func shell(script string) string { return "/bin/sh\x00-c\x00" + script }

func TestCommand(t *testing.T) {
	t.Parallel()
	const limit = 3 * time.Second // enough to start a shell
	checks(t, edge.ProbeCommand, []check{
		{"good", edge.Probe{Command: "/bin/true"}, ""},
		{"good, with words", edge.Probe{Command: shell("echo fine")}, ""},
		{"code 1", edge.Probe{Command: "/bin/false"}, "command ended with code 1"},
		{"code and last line", edge.Probe{Command: shell("echo first; echo ' second\x1b[1m ' >&2; echo; exit 7")}, "command ended with code 7: second[1m"},
		{"much output", edge.Probe{Command: shell("yes | head -c 1000000; echo the end; exit 2")}, "command ended with code 2: the end"},
		{"one long line", edge.Probe{Command: shell("yes | tr -d '\\n' | head -c 100000; exit 2")}, "command ended with code 2: yyy"},
		{"cannot tell", edge.Probe{Command: shell("echo no idea; exit 75")}, "unknown: command ended with code 75: no idea"},
		{"crashes", edge.Probe{Command: shell("echo oh; kill -SEGV $$")}, "unknown: signal ended the command: segmentation fault: oh"},
		{"too long", edge.Probe{Command: shell("echo wait; sleep 60"), Timeout: limit}, "command did not end within 3s: wait"},
		{"too long and deaf", edge.Probe{Command: shell("trap '' TERM INT HUP; while :; do sleep 1; done"), Timeout: limit}, "command did not end within 3s"},
		{"reads its input", edge.Probe{Command: shell("read x && exit 3; exit 0")}, ""},
		{"arguments", edge.Probe{Command: "/usr/bin/test\x00a b\x00=\x00a b"}, ""},
		{"environment", edge.Probe{Command: shell(`test "$(env | cut -d= -f1 | sort | tr '\n' ' ')" = "LANG PATH PWD "`)}, ""},
		{"folder", edge.Probe{Command: shell(`test "$PWD" = / && test "$LANG" = C`)}, ""},
		{"missing", edge.Probe{Command: "/nowhere/check"}, "unknown: start /nowhere/check: no such file or directory"},
		{"no program", edge.Probe{Command: "/etc/passwd"}, "unknown: start /etc/passwd: permission denied"},
		{"relative", edge.Probe{Command: "true"}, `unknown: command "true" is not an absolute path`},
		{"empty", edge.Probe{}, `unknown: command "" is not an absolute path`},
		{"left behind holds the output", edge.Probe{Command: shell("echo out; setsid sleep 2 & exit 4")}, "command ended with code 4: out"},
	})
}

// TestCommandGroup proves that a whole group dies, at the end of the command
// and at that of its time, and that nothing of it stays as a zombie of ours.
func TestCommandGroup(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end, want string
		limit     time.Duration
	}{
		"in time":  {"exit 5", "command ended with code 5", ample},
		"too late": {"sleep 60", "command did not end within 5s", 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "pids")
			// A child, a grandchild, and the leader.
			script := fmt.Sprintf("(sh -c 'echo $$; exec sleep 60' >>%[1]s & echo $! >>%[1]s; sleep 60) & echo $! >>%[1]s; echo $$ >%[1]s.leader; echo >>%[1]s; "+
				"while [ $(wc -l <%[1]s) -lt 4 ]; do sleep 0.01; done; %[2]s", file, c.end)
			expect(t, try(t, edge.Probe{Kind: edge.ProbeCommand, Command: shell(script), Timeout: c.limit}), c.want)
			pids := strings.Fields(string(must(os.ReadFile(file))))
			if len(pids) != 3 {
				t.Fatalf("pids %q", pids)
			}
			for _, pid := range pids {
				eventually(t, pid+" is gone", func() bool {
					// Who was not our own child is a zombie until init sees to it.
					return alive(must(strconv.Atoi(pid))) != nil
				})
			}
			leader := must(strconv.Atoi(strings.TrimSpace(string(must(os.ReadFile(file + ".leader"))))))
			if unix.Kill(leader, 0) == nil {
				t.Errorf("leader %d is still there: %v", leader, alive(leader))
			}
		})
	}
}

func TestCommandStopped(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	stop := time.AfterFunc(50*time.Millisecond, cancel)
	defer stop.Stop()
	expect(t, newCommandKind().Probe(ctx, edge.Probe{Command: shell("sleep 60"), Timeout: time.Minute}), "unknown: stopped")
}

// TestCommandsAtOnce: no more than the bound run, the others are unknown; and
// who had to wait does not pay for it.
func TestCommandsAtOnce(t *testing.T) {
	t.Parallel()
	k := newCommandKind()
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range maxCommands {
		all.Go(func() {
			expect(t, tryOf(t, k, edge.Probe{Command: shell("read x <" + gate), Timeout: ample}), "")
		})
	}
	eventually(t, "all slots are taken", func() bool { return len(k.slots) == maxCommands })
	for range 3 {
		expect(t, tryOf(t, k, edge.Probe{Command: "/bin/true", Timeout: 50 * time.Millisecond}), "unknown: 16 other commands are running")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect(t, k.Probe(ctx, edge.Probe{Command: "/bin/true", Timeout: time.Second}), "unknown: stopped")
	slow := make(chan error, 1)
	go func() { slow <- tryOf(t, k, edge.Probe{Command: shell("sleep 60"), Timeout: 5 * time.Second}) }()
	// It waits for a slot until the gate opens, and has not its whole time then.
	open := time.Now().Add(1500 * time.Millisecond)
	eventually(t, "it has waited", func() bool { return time.Now().After(open) })
	f := must(os.OpenFile(gate, os.O_RDWR, 0))
	defer f.Close()
	if _, err := f.WriteString(strings.Repeat("go\n", maxCommands)); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	expect(t, <-slow, "unknown: command waited for others, and had not the time to end")
	eventually(t, "all slots are free", func() bool { return len(k.slots) == 0 })
}

// TestCommandUnderFire ends commands by the hundred, and at odd times.
func TestCommandUnderFire(t *testing.T) {
	t.Parallel()
	k := newCommandKind()
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			script := []string{"kill -KILL $$", "kill -ABRT $$; exit 1", "exit 0", "sleep 0.02", "cat /dev/urandom", "ulimit -v 1000; exec sleep 1"}[i%6]
			_ = tryOf(t, k, edge.Probe{Command: shell(script), Timeout: time.Duration(1+i) * 5 * time.Millisecond})
		})
	}
	all.Wait()
	eventually(t, "all slots are free", func() bool { return len(k.slots) == 0 })
	expect(t, tryOf(t, k, edge.Probe{Command: "/bin/true"}), "")
}

func TestTail(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "\n\n": "", "a": "a", "a\nb\n": "b", "a\n \t\n\x00\n": "a", strings.Repeat("x", 3*maxOutput) + "\nend": "end",
	} {
		out := &tail{}
		for chunk := range strings.SplitAfterSeq(text, "x") {
			_, _ = out.Write([]byte(chunk))
		}
		if got := out.lastLine(); got != want || len(out.b) > maxOutput {
			t.Errorf("of %.20q is left %q, %d bytes kept; want %q", text, got, len(out.b), want)
		}
	}
	out := &tail{}
	_, _ = out.Write(make([]byte, 3*maxOutput))
	if len(out.b) != maxOutput {
		t.Errorf("%d bytes are kept", len(out.b))
	}
}
