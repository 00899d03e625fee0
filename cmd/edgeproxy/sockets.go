package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/proxy"
)

// firstFD is where inherited sockets begin (sd_listen_fds(3)).
const firstFD = 3

// passedFDs is the variable by which this process tells itself, once it has
// become another user, which descriptors are its sockets: PID:FD,FD,...
const passedFDs = "EDGEPROXY_SOCKETS"

// sockets are all that the process listens on.
type sockets struct {
	tcp     map[netip.AddrPort]*net.TCPListener
	control *net.UnixListener // nil until opened
	log     *slog.Logger
}

// inheritSockets takes over the sockets that the service manager, or this very
// process before it changed its user, has passed. They are told apart by their address, not by LISTEN_FDNAMES.
func inheritSockets(log *slog.Logger) (*sockets, error) {
	s := &sockets{tcp: map[netip.AddrPort]*net.TCPListener{}, log: log}
	fds, err := inherited(os.Getenv)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", passedFDs} {
		os.Unsetenv(name) // they are about this process only
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), "socket "+strconv.Itoa(fd))
		if f == nil {
			return nil, fmt.Errorf("take over socket %d: not open", fd)
		}
		ln, err := net.FileListener(f)
		f.Close() // FileListener has its own copy
		if err != nil {
			return nil, fmt.Errorf("take over socket %d: %w", fd, err)
		}
		s.take(ln)
	}
	return s, nil
}

// inherited returns the descriptors that have been passed to this process, and
// not to another one whose environment it has.
func inherited(getenv func(string) string) ([]int, error) {
	own := strconv.Itoa(os.Getpid())
	if pid, list, _ := strings.Cut(getenv(passedFDs), ":"); pid == own {
		var fds []int
		for text := range strings.SplitSeq(list, ",") {
			fd, err := strconv.ParseUint(text, 10, 16)
			if err != nil || fd < firstFD {
				return nil, fmt.Errorf("read %s: %q is not a descriptor", passedFDs, text)
			}
			fds = append(fds, int(fd))
		}
		return fds, nil
	}
	if getenv("LISTEN_PID") != own || getenv("LISTEN_FDS") == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(getenv("LISTEN_FDS"), 10, 16)
	if err != nil {
		return nil, fmt.Errorf("read LISTEN_FDS: %w", err)
	}
	fds := make([]int, n)
	for i := range fds {
		fds[i] = firstFD + i
	}
	return fds, nil
}

func (s *sockets) take(ln net.Listener) {
	switch l := ln.(type) {
	case *net.TCPListener:
		at := l.Addr().(*net.TCPAddr).AddrPort()
		s.tcp[netip.AddrPortFrom(at.Addr().Unmap(), at.Port())] = l
	case *net.UnixListener:
		s.control = l
	default:
		ln.Close()
	}
}

// open makes what has not been inherited and closes what nobody wants.
func (s *sockets) open(cfg *edge.Config, control string) error {
	want, err := proxy.Listen(cfg, s.tcp)
	if err != nil {
		return err
	}
	for at, ln := range s.tcp { // what is left
		s.log.Warn("inherited socket closed: no service or health port has its address", "address", at)
		ln.Close()
	}
	s.tcp = want
	if s.control != nil && s.control.Addr().String() != control {
		s.log.Warn("inherited socket closed: it is not the control socket", "address", s.control.Addr())
		s.control.Close()
		s.control = nil
	}
	if s.control == nil {
		ln, err := socket.Listen(control)
		if err != nil {
			return err
		}
		s.control = ln.(*net.UnixListener)
	}
	return nil
}

// files returns a descriptor of each socket.
func (s *sockets) files() ([]*os.File, error) {
	f, err := s.control.File()
	if err != nil {
		return nil, fmt.Errorf("pass control socket on: %w", err)
	}
	files := []*os.File{f}
	for at, ln := range s.tcp {
		f, err := ln.File()
		if err != nil {
			return nil, fmt.Errorf("pass socket %s on: %w", at, err)
		}
		files = append(files, f)
	}
	return files, nil
}
