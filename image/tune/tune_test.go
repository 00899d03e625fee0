package tune

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPlan(t *testing.T) {
	lro := Change{Interface: "eth1", Feature: "rx-lro", Why: "a"}
	again := Change{Interface: "eth1", Feature: "rx-lro", Why: "b"}
	mtu := Change{Interface: "eth0", MTU: 1500}
	four := Change{Interface: "eth1", Queues: &Queues{Leave, Leave, 4}}
	two := Change{Interface: "eth1", Queues: &Queues{RX: 2, TX: 2, Combined: Leave}}
	got := Plan([]Change{lro, again, mtu, four, two})
	if d := cmp.Diff([]Change{mtu, four, two, lro}, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	var words []string
	for _, c := range got {
		words = append(words, c.String())
	}
	want := []string{"eth0: mtu 1500", "eth1: queues combined 4", "eth1: queues rx 2, tx 2", "eth1: rx-lro off"}
	if !slices.Equal(words, want) {
		t.Errorf("%q, want %q", words, want)
	}
	if got := Plan(nil); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// recorder is a device that notes what it is told, and refuses some.
type recorder struct {
	told   []string
	refuse string
}

func (r *recorder) note(text string) error {
	r.told = append(r.told, text)
	if text == r.refuse {
		return errors.New("device busy")
	}
	return nil
}

func (r *recorder) off(i, f string) error           { return r.note(i + " " + f) }
func (r *recorder) queues(i string, q Queues) error { return r.note(fmt.Sprint(i, " ", q)) }
func (r *recorder) mtu(i string, n int) error       { return r.note(fmt.Sprint(i, " ", n)) }

// TestRefused: what is refused is told, and the rest is done.
func TestRefused(t *testing.T) {
	plan := []Change{{Interface: "eth0", Queues: &Queues{Leave, Leave, 4}}, {Interface: "eth0", Feature: "rx-lro"}, {Interface: "eth0", MTU: 1500}}
	r := &recorder{refuse: "eth0 rx-lro"}
	done, err := apply(plan, r)
	if err == nil || err.Error() != "set eth0: rx-lro off: device busy" {
		t.Errorf("error %v", err)
	}
	if d := cmp.Diff([]Change{plan[0], plan[2]}, done); d != "" {
		t.Errorf("done (-want +got)\n%s", d)
	}
	if want := []string{"eth0 {-1 -1 4}", "eth0 rx-lro", "eth0 1500"}; !slices.Equal(r.told, want) {
		t.Errorf("told %q, want %q", r.told, want)
	}
}

// TestVeth sets a real one: it has queues, an offload and an MTU, and refuses what
// it does not have.
func TestVeth(t *testing.T) {
	runtime.LockOSThread()
	home, err := netns.Get()
	check(t, err)
	ns, err := netns.New()
	check(t, err)
	defer func() {
		check(t, netns.Set(home))
		ns.Close()
		home.Close()
		runtime.UnlockOSThread()
	}()
	check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", NumTxQueues: 8, NumRxQueues: 8, MTU: 9000}, PeerName: "far0"}))
	eth, err := ethtool.NewEthtool()
	check(t, err)
	defer eth.Close()
	before, err := eth.GetChannels("eth0")
	check(t, err)
	done, err := Apply(Plan([]Change{
		{Interface: "eth0", Feature: "tx-checksum-ip-generic"},
		{Interface: "eth0", MTU: 3000},
		{Interface: "eth0", Queues: &Queues{RX: 3, TX: Leave, Combined: Leave}},
	}))
	check(t, err)
	if len(done) != 3 {
		t.Errorf("done: %v", done)
	}
	now, err := eth.GetChannels("eth0")
	check(t, err)
	if now.RxCount != 3 || now.TxCount != before.TxCount {
		t.Errorf("queues %+v, were %+v", now, before)
	}
	on, err := eth.Features("eth0")
	check(t, err)
	l, err := netlink.LinkByName("eth0")
	check(t, err)
	if on["tx-checksum-ip-generic"] || l.Attrs().MTU != 3000 {
		t.Errorf("checksum %v, mtu %d", on["tx-checksum-ip-generic"], l.Attrs().MTU)
	}
	for _, c := range []Change{
		{Interface: "eth0", Feature: "rx-lro"}, {Interface: "eth0", Feature: "nonsense"}, {Interface: "eth0", Queues: &Queues{99, Leave, Leave}},
		{Interface: "eth0", MTU: 1}, {Interface: "nope", MTU: 1500}, {Interface: "nope", Feature: "rx-lro"}, {Interface: "nope", Queues: &Queues{1, 1, 1}},
	} {
		done, err := Apply([]Change{c})
		if c.Feature == "rx-lro" && c.Interface == "eth0" {
			check(t, err) // it is off already
			continue
		}
		if err == nil || len(done) != 0 || !strings.Contains(err.Error(), "set "+c.String()) {
			t.Errorf("%s: done %v, error %v", c, done, err)
		}
	}
}
