package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/catchment-dev/edge/image/setup/confirm"
)

// Look implements liveConfig.
func (b *runningBox) Look(ctx context.Context, ssh []string) (f confirm.Facts) {
	answers := make([]bool, len(ssh))
	var wg sync.WaitGroup
	for i, at := range ssh {
		wg.Go(func() { answers[i] = sshAnswers(ctx, at) })
	}
	st, err := b.status(ctx)
	wg.Wait()
	for i, at := range ssh {
		if answers[i] {
			f.SSH = append(f.SSH, at)
		}
	}
	if err != nil {
		return f
	}
	f.Edged = true
	if st.SpeakerErr != "" {
		return f // what it said last is old: nothing is known to be established
	}
	for _, p := range st.Speaker.Peers {
		if p.Session == "established" {
			f.Established = append(f.Established, string(p.ID))
		}
	}
	return f
}

// sshAnswers says whether sshd greets on an address of this box. The address is
// looked for first: once it is gone from the box, another one may answer on it.
func sshAnswers(ctx context.Context, at string) bool {
	a, err := netip.ParseAddrPort(at)
	if err != nil || !ownAddress(a.Addr()) {
		return false
	}
	d := net.Dialer{Timeout: 800 * time.Millisecond}
	c, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(800 * time.Millisecond))
	greeting := make([]byte, 4)
	_, err = io.ReadFull(c, greeting)
	return err == nil && string(greeting) == "SSH-"
}

func ownAddress(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(x net.Addr) bool {
		n, ok := x.(*net.IPNet)
		if !ok {
			return false
		}
		own, ok := netip.AddrFromSlice(n.IP)
		return ok && own.Unmap() == a.WithZone("").Unmap()
	})
}

// sshLogins are the addresses of this box by which somebody is logged in: the
// one of this login, if it says so (sudo may have dropped it), else all that have
// a connection to sshd's port.
func sshLogins(connection string) []string {
	if f := strings.Fields(connection); len(f) == 4 {
		if a, err := netip.ParseAddr(f[2]); err == nil {
			if port, err := strconv.ParseUint(f[3], 10, 16); err == nil {
				return []string{netip.AddrPortFrom(a, uint16(port)).String()}
			}
		}
	}
	var out []string
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for _, a := range established(string(text), 22) {
			if !slices.Contains(out, a.String()) && len(out) < 8 {
				out = append(out, a.String())
			}
		}
	}
	slices.Sort(out)
	return out
}

// established are the local addresses of connections to a port, in the table of
// proc_net_tcp: 32-bit words of the host's byte order, here little-endian.
func established(table string, port uint16) (out []netip.AddrPort) {
	suffix := fmt.Sprintf(":%04X", port)
	for text := range strings.Lines(table) {
		f := strings.Fields(text)
		if len(f) < 4 || f[3] != "01" {
			continue
		}
		words, ok := strings.CutSuffix(f[1], suffix)
		b, err := hex.DecodeString(words)
		if !ok || err != nil || len(b)%4 != 0 {
			continue
		}
		for i := 0; i < len(b); i += 4 {
			binary.BigEndian.PutUint32(b[i:], binary.NativeEndian.Uint32(b[i:]))
		}
		if a, ok := netip.AddrFromSlice(b); ok {
			out = append(out, netip.AddrPortFrom(a.Unmap(), port))
		}
	}
	return out
}
