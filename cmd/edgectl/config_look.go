package main

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/catchment-dev/edge/image/setup/confirm"
)

// Look implements liveConfig.
func (b *runningBox) Look(ctx context.Context, r confirm.Rules) (f confirm.Facts) {
	lookAtLogins(r, &f)
	ssh := r.SSH
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

// greetLimit is what sshd has to greet: a box whose daemons all start at once is late, and
// not cut off. It leaves room for more than one try in confirm.SSHGrace.
const greetLimit = 3 * time.Second

// sshAnswers says whether sshd greets on an address of this box. The address is
// looked for first: once it is gone from the box, another one may answer on it.
func sshAnswers(ctx context.Context, at string) bool {
	a, err := netip.ParseAddrPort(at)
	if err != nil || !ownAddress(a.Addr()) {
		return false
	}
	d := net.Dialer{Timeout: greetLimit}
	c, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(greetLimit))
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
