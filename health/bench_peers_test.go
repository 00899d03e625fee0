package health

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// batch is how many runs of a load start together, as those of a tick do.
const batch = int(benchmarkProbes * tick / time.Second)

// paced is a load that does a batch each tick.
func paced(each func(), end func()) generator {
	var runs atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for next := time.Now(); ; {
			select {
			case <-stop:
				return
			default:
			}
			each()
			runs.Add(uint64(batch))
			next = next.Add(tick)
			nap(time.Until(next))
		}
	}()
	return generator{cpuTime, runs.Load, func() {
		close(stop)
		<-done
		end()
	}}
}

// floor is a load of the system calls of the engine alone: the same ones, in the
// same order, on sockets that are used again.
func floor(p edge.Probe) load {
	return func(b *testing.B) generator {
		g := newEngine()
		must(0, g.open())
		socks := make([]*sock, batch)
		if p.KeepAlive {
			socks = make([]*sock, benchmarkProbes)
		}
		f := newFlight(newEntry(p, nil))
		for i := range socks {
			socks[i] = must(g.socket(f.key))
			if p.KeepAlive {
				_ = connectTo(socks[i].fd, &f.to)
			}
		}
		from := 0
		return paced(func() {
			f.bare(socks[from : from+batch])
			from = (from + batch) % len(socks)
		}, g.close)
	}
}

// bare has each socket do a run of f.
func (f *flight) bare(socks []*sock) {
	buf := make([]byte, 4096)
	for _, s := range socks {
		if !f.keep {
			_ = connectTo(s.fd, &f.to)
		}
	}
	for _, s := range socks {
		if f.request == nil {
			must(0, connectTo(s.fd, &f.to)) // does it stand?
			if meetsItself(s.fd, &f.to) {
				panic("no connection: it meets itself")
			}
			must(0, disconnect(s.fd))
		} else {
			must(send(s.fd, f.request))
		}
	}
	if f.request == nil {
		return
	}
	nap(gather)
	for _, s := range socks {
		n, err := receive(s.fd, buf)
		for ; err == unix.EAGAIN; n, err = receive(s.fd, buf) {
			nap(gather)
		}
		if err != nil || n == 0 {
			panic(fmt.Sprint("no answer: ", n, err))
		}
		if !f.keep {
			must(0, disconnect(s.fd))
		}
	}
}

// plain is a load of a simple program: blocking calls, a new socket each time.
func plain(p edge.Probe) load {
	return func(b *testing.B) generator {
		f := newFlight(newEntry(p, nil))
		to := &unix.SockaddrInet4{Port: int(p.Addr.Port()), Addr: p.Addr.Addr().As4()}
		fds, buf := make([]int, batch), make([]byte, 4096)
		return paced(func() {
			for i := range fds {
				fds[i] = must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
				must(0, unix.Connect(fds[i], to))
				if f.request != nil {
					must(unix.Write(fds[i], f.request))
				}
			}
			for _, fd := range fds {
				if f.request != nil {
					must(unix.Read(fd, buf))
				}
				must(0, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
				must(0, unix.Close(fd))
			}
		}, func() {})
	}
}

// haproxy is a load of HAProxy: as many servers, each checked each second.
func haproxy(at netip.AddrPort, option string) load {
	return func(b *testing.B) generator {
		dir := b.TempDir()
		var conf strings.Builder
		fmt.Fprintf(&conf, "global\n nbthread 1\n maxconn 5000\n"+
			"defaults\n mode http\n timeout connect 1s\n timeout server 1s\n timeout client 1s\n timeout check 1s\n"+
			"frontend f\n bind unix@%s/f.sock\n default_backend b\nbackend b\n %s\n", dir, option)
		for i := range benchmarkProbes {
			fmt.Fprintf(&conf, " server s%d %s check inter 1s\n", i, at)
		}
		file := filepath.Join(dir, "haproxy.cfg")
		if err := os.WriteFile(file, []byte(conf.String()), 0o600); err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command("haproxy", "-db", "-q", "-f", file)
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		return generator{func() time.Duration { return cpuTimeOf(cmd.Process.Pid) }, activeOpens, func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}}
	}
}

// cpuTimeOf reads user and system time, in ticks of 10 ms, of another process
// (proc_pid_stat(5), fields 14 and 15).
func cpuTimeOf(pid int) time.Duration {
	stat := string(must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))))
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	sum := time.Duration(0)
	for _, f := range fields[11:13] {
		sum += time.Duration(must(strconv.Atoi(f))) * 10 * time.Millisecond
	}
	return sum
}

// activeOpens returns how many connections this namespace has begun. A server
// cannot count HAProxy's: they are reset before they are accepted.
func activeOpens() uint64 {
	var names, values []string
	for line := range strings.Lines(string(must(os.ReadFile("/proc/net/snmp")))) {
		if f := strings.Fields(line); f[0] == "Tcp:" {
			names, values = values, f
		}
	}
	return must(strconv.ParseUint(values[slices.Index(names, "ActiveOpens")], 10, 64))
}
