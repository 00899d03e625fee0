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
)

// floor is a load of the system calls alone, as a program in C would make them:
// on one thread, each batch of a tick of ours in one go.
func floor(at netip.AddrPort, web bool) load {
	return func(b *testing.B) generator {
		to := &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
		ask := []byte("GET / HTTP/1.1\r\nHost: " + at.String() + "\r\nUser-Agent: catchment-probe\r\nAccept: */*\r\nConnection: close\r\n\r\n")
		var runs atomic.Uint64
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			fds := make([]int, benchmarkProbes*tick/time.Second)
			buf := make([]byte, 4096)
			for next := time.Now(); ; {
				select {
				case <-stop:
					return
				default:
				}
				for i := range fds {
					fds[i] = must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
					must(0, unix.Connect(fds[i], to))
					if web {
						must(unix.Write(fds[i], ask))
					}
				}
				for _, fd := range fds {
					if web {
						must(unix.Read(fd, buf))
					}
					must(0, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
					must(0, unix.Close(fd))
				}
				runs.Add(uint64(len(fds)))
				next = next.Add(tick)
				pause := unix.NsecToTimespec(int64(max(0, time.Until(next))))
				_ = unix.Nanosleep(&pause, nil)
			}
		}()
		return generator{cpuTime, runs.Load, func() {
			close(stop)
			<-done
		}}
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
		return generator{func() time.Duration { return cpuTimeOf(b, cmd.Process.Pid) }, activeOpens, func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}}
	}
}

// cpuTimeOf reads user and system time, in ticks of 10 ms, of another process
// (proc_pid_stat(5), fields 14 and 15).
func cpuTimeOf(b *testing.B, pid int) time.Duration {
	stat := string(must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))))
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	sum := time.Duration(0)
	for _, f := range fields[11:13] {
		sum += time.Duration(must(strconv.Atoi(f))) * 10 * time.Millisecond
	}
	if sum == 0 {
		b.Fatalf("process %d has used no CPU: %s", pid, stat)
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
