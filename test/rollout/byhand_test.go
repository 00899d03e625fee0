package rollout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
)

// TestByHand has a fleet come up without Ansible: what the scenarios stand on works by
// itself.
func TestByHand(t *testing.T) {
	ctx := limit(t, 15*time.Minute)
	f := newFleet(ctx, t, size())
	f.goesUp(ctx, t, []part{
		{"the package is installed and configured by hand, and all announce", func(ctx context.Context, _ *testing.T, f *fleet) error {
			if err := f.each(func(n *node) error { return f.installByHand(ctx, n, oldVersion) }); err != nil {
				return err
			}
			return f.settled(ctx)
		}, false},
	})
	f.goes(ctx, t, []part{
		{"all that runs is well", healthy, false},
		{"edged restarts under traffic", restartUnderTraffic, false},
		{"a node is upgraded by hand under traffic", upgradeUnderTraffic, false},
		{"a broken daemon does not come back, and is repaired", breakAndRepair, true},
		{"a node reboots", reboot, true},
		{"nodes are switched off", powerOffSpare, true},
	})
}

// installByHand is docs/install.md.
func (f *fleet) installByHand(ctx context.Context, n *node, version string) error {
	if err := f.bring(n, version); err != nil {
		return err
	}
	if _, err := f.operator.SSH(ctx, n.Addr4, "apt-get -q -y install "+bringTo); err != nil {
		return err
	}
	config, err := n.config()
	if err != nil {
		return err
	}
	if err := n.put("/root/edge.yaml", []byte(config), 0o644); err != nil {
		return err
	}
	for _, part := range []string{"fleet", filepath.Join("nodes", n.Name())} {
		if err := copyTree(n.inside(secretsDir), filepath.Join(f.operator.Fleet, "secrets", part)); err != nil {
			return fmt.Errorf("copy secrets to %s: %w", n.Name(), err)
		}
	}
	_, err = f.operator.SSH(ctx, n.Addr4, `set -e
cd `+secretsDir+`
chmod 0755 .
chown edgeproxy: *.example.net.*
chown edged: gossip.key ring.seed node.key
[ ! -e bgp.key ] || chown edgebgp: bgp.key
edgectl check /root/edge.yaml
install -m 0644 /root/edge.yaml /etc/edge/edge.yaml
systemctl start edge-tune edged edgeproxy edgebgp`)
	return err
}

// bringTo is where a node has a package that was brought.
const bringTo = "/root/edge.deb"

// bring copies a package to a node.
func (f *fleet) bring(n *node, version string) error {
	deb, err := os.ReadFile(f.debs[version])
	if err != nil {
		return fmt.Errorf("read the package: %w", err)
	}
	return n.put(bringTo, deb, 0o644)
}

// healthy looks at each system as a whole: no unit has failed, no daemon was started
// again, and all run as what they are to.
func healthy(ctx context.Context, t *testing.T, f *fleet) error {
	t.Logf("with the daemons%s", f.memory())
	return f.each(func(n *node) error {
		for _, unit := range []string{"edged", "edgebgp", "edgeproxy"} {
			out, err := n.run(ctx, "systemctl", "show", "-p", "ActiveState,NRestarts,User", "--value", unit)
			if got := strings.Fields(out); err != nil || !slices.Equal(got, []string{"active", "0", unit}) && !slices.Equal(got, []string{"0", unit, "active"}) {
				return fmt.Errorf("%s of %s is %q, %v", unit, n.Name(), got, err)
			}
		}
		out, err := n.run(ctx, "systemctl", "is-system-running")
		if strings.TrimSpace(out) != "running" {
			return fmt.Errorf("%s is %s: %w", n.Name(), out, err)
		}
		st, err := n.Status(ctx)
		if err != nil || !strings.HasPrefix(st.Version, oldVersion+" ") || string(st.Node) != n.Name() {
			return fmt.Errorf("the status of %s is of %s, version %s, %v", n.Name(), st.Node, st.Version, err)
		}
		return nil
	})
}

// restartUnderTraffic: nothing is withdrawn, nothing lost.
func restartUnderTraffic(ctx context.Context, t *testing.T, f *fleet) error {
	return f.underTraffic(ctx, t, func(ctx context.Context) error {
		n := f.nodes[0]
		before, err := n.Status(ctx)
		if err != nil {
			return err
		}
		if _, err := f.operator.SSH(ctx, n.Addr4, "systemctl restart edged"); err != nil {
			return err
		}
		if st, err := n.Status(ctx); err != nil || !st.Started.After(before.Started) {
			return fmt.Errorf("edged of %s has not restarted, %v", n.Name(), err)
		}
		err = lab.UntilEvery(ctx, 500*time.Millisecond, "edged of "+n.Name()+" reloads", func() error {
			_, err := f.operator.SSH(ctx, n.Addr4, "systemctl reload edged") // not before its first round of probes is over
			return err
		})
		if err != nil {
			return err
		}
		return f.settled(ctx)
	})
}

// upgradeUnderTraffic: drained, all three daemons of the new version, back.
func upgradeUnderTraffic(ctx context.Context, t *testing.T, f *fleet) error {
	return f.underTraffic(ctx, t, func(ctx context.Context) error {
		n := f.nodes[len(f.nodes)-1]
		if err := f.bring(n, newVersion); err != nil {
			return err
		}
		start := time.Now()
		for _, line := range []string{
			"edgectl drain --wait 3m --reason 'upgrade by hand'",
			"apt-get -q -y install " + bringTo + " && systemctl restart edgeproxy edgebgp",
			"edgectl undrain",
		} {
			if _, err := f.operator.SSH(ctx, n.Addr4, line); err != nil {
				return err
			}
			t.Logf("%5.1f s  %s", time.Since(start).Seconds(), line)
		}
		if err := f.settled(ctx); err != nil {
			return err
		}
		t.Logf("%5.1f s  it announces", time.Since(start).Seconds())
		return n.runs(ctx, newVersion)
	})
}

// runs is an error unless all daemons of the node are of a version, as the very programs
// say that run.
func (n *node) runs(ctx context.Context, version string) error {
	for _, unit := range []string{"edged", "edgebgp", "edgeproxy"} {
		out, err := n.sh(ctx, `"/proc/$(systemctl show -p MainPID --value `+unit+`)/exe" -version`)
		if err != nil || !slices.Contains(strings.Fields(out), version) {
			return fmt.Errorf("%s of %s is %q, not %s, %v", unit, n.Name(), out, version, err)
		}
	}
	return nil
}

// breakAndRepair: a daemon that does not start again takes its node off the air, in
// order, and back when it is repaired.
func breakAndRepair(ctx context.Context, t *testing.T, f *fleet) error {
	n := f.nodes[0]
	if err := n.Break(ctx, "edgeproxy"); err != nil {
		return err
	}
	if err := f.settled(ctx); err != nil {
		return fmt.Errorf("a daemon that runs is not to mind: %w", err)
	}
	if _, err := n.run(ctx, "systemctl", "restart", "edgeproxy"); err == nil {
		return errors.New("a broken daemon has started")
	}
	err := lab.Until(ctx, n.Name()+" withdraws", func() error {
		st, err := n.Status(ctx)
		if err != nil {
			return err
		}
		for _, d := range st.Decisions {
			if d.Rung != edge.Withdrawn {
				return fmt.Errorf("%s is %s: %s", d.Prefix, d.Rung, d.Reason)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := n.Repair(ctx, "edgeproxy"); err != nil {
		return err
	}
	return f.settled(ctx)
}

// reboot: a node leaves in order, and is back by itself.
func reboot(ctx context.Context, t *testing.T, f *fleet) error {
	n := f.node("b1")
	_, boots := n.current()
	start := time.Now()
	// The connection may break before the command is done.
	_, _ = f.operator.SSH(ctx, n.Addr4, "systemctl reboot")
	err := lab.Until(ctx, n.Name()+" boots again", func() error {
		if _, now := n.current(); now == boots {
			return errors.New("it has not ended")
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.Logf("%5.1f s  it has ended", time.Since(start).Seconds())
	if err := n.awaitUp(ctx); err != nil {
		return err
	}
	t.Logf("%5.1f s  it is up", time.Since(start).Seconds())
	return f.settled(ctx)
}

// powerOffSpare switches the sites off that the floor does not need, node after node: they
// leave in order. The others would be refused for the 90 s that a unit has: they are ended
// as if the power had failed.
func powerOffSpare(ctx context.Context, t *testing.T, f *fleet) error {
	spare := 0
	for _, s := range f.scale.nodes[:len(f.scale.nodes)-f.floor] {
		spare += s
	}
	for _, n := range f.nodes[:spare] {
		start := time.Now()
		if err := n.powerOff(ctx); err != nil {
			return err
		}
		t.Logf("%5.1f s  %s is off", time.Since(start).Seconds(), n.Name())
	}
	for _, n := range f.nodes {
		n.kill()
	}
	return nil
}
