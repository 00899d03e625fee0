package lab

import (
	"fmt"

	"github.com/catchment-dev/edge/xdp"
)

// attachStub puts a program that passes everything on the router's end of a
// box's link: veth takes packets that XDP sends only if the other end has one.
func (l *Lab) attachStub(r *Router, ifname string) error {
	err := r.Do(func() error {
		c, err := xdp.AttachPassStub(ifname)
		if err == nil {
			l.stubs = append(l.stubs, c)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("attach stub to %s of %s: %w", ifname, r.name, err)
	}
	return nil
}
