package xdp

import (
	"slices"
	"testing"

	"github.com/catchment-dev/edge"
)

// What may follow a backend: packets of flows that it has.
const (
	tcpData    = "tcp"
	newTCP     = "syn"
	sessionTCP = "syn of a session"
	udpData    = "udp"
	espData    = "esp"
)

// sessionPort is of a service that remembers clients, not connections.
const sessionPort = 443

func followers() []string { return []string{tcpData, newTCP, sessionTCP, udpData, espData} }

// follower is the packet of client i.
func follower(name, vip string, i int) []byte {
	switch name {
	case newTCP:
		return from(tcpTo(withPort(vip, 80), flagSYN), i)
	case sessionTCP:
		return from(tcpTo(withPort(vip, sessionPort), flagSYN), i)
	case udpData:
		return from(udpTo(withPort(vip, 80)), i)
	case espData:
		return from(protoTo(vip, protoESP), i)
	}
	return from(tcpTo(withPort(vip, 80), flagACK), i)
}

// backendState is what a backend of weight 1 becomes, and which packets of flows
// that it had follow it then.
type backendState struct {
	name    string
	change  func(b *edge.TableBackend)
	follows []string
}

func backendStates() []backendState {
	return []backendState{
		{"in the ring", func(*edge.TableBackend) {}, []string{tcpData, sessionTCP, udpData, espData}},
		{"weight 0", func(b *edge.TableBackend) { b.Weight, b.KeepTCP, b.KeepOther = 0, true, true }, []string{tcpData, sessionTCP, udpData, espData}},
		// It gets no new connections, not even of a client that it has already.
		{"draining", func(b *edge.TableBackend) { b.Weight, b.KeepTCP = 0, true }, []string{tcpData}},
		{"keeps all but tcp", func(b *edge.TableBackend) { b.Weight, b.KeepOther = 0, true }, []string{udpData, espData}},
		{"keeps nothing", func(b *edge.TableBackend) { b.Weight = 0 }, nil},
		{"another address", func(b *edge.TableBackend) { b.Addr = addr("10.0.0.102") }, nil},
		{"another name", func(b *edge.TableBackend) { b.ID = "other" }, nil},
	}
}

// followTable has a service of everything, and one that remembers clients.
func followTable(vip string, b ...edge.TableBackend) edge.Table {
	sessions := service("sessions", withPort(vip, sessionPort), edge.TCP, b...)
	sessions.Affinity, sessions.Tracking = edge.AffinityClientIP, edge.PerSession
	return tableOf(ofAll(vip, b...), sessions)
}

// eachFollower goes through the packets of many clients of each kind.
func eachFollower(vip string, do func(name string, i int, f []byte)) {
	const clients = 100
	for at, name := range followers() {
		for i := range clients {
			do(name, i, follower(name, vip, at*clients+i))
		}
	}
}

// Which flows follow a backend, by what it is in the table, and by the packet:
// half-open and established ones, both families. The others go where the ring
// says.
func TestWhoFollowsABackend(t *testing.T) {
	d := policyBox(t, 1<<12)
	b := pool(t, 3)
	feed := d.feeder()
	for _, state := range backendStates() {
		for _, vip := range bothVIPs(0) {
			d.forgetFlows()
			apply(t, d.Forwarder, followTable(vip, b[0]))
			eachFollower(vip, func(_ string, i int, f []byte) {
				for range 1 + i%2 { // every second one becomes an established one
					feed.to(t, f)
				}
			})
			changed := b[0]
			state.change(&changed)
			now := []edge.TableBackend{changed, b[1]}
			apply(t, d.Forwarder, followTable(vip, now...))
			ring, moved := byTheRing(t, now), map[string]int{}
			eachFollower(vip, func(name string, i int, f []byte) {
				fields := 5
				if name == sessionTCP {
					fields = 2
				}
				want := numberIn(now, ring(f, fields))
				if want != 0 {
					moved[name]++
				}
				if slices.Contains(state.follows, name) {
					want = 0
				}
				if got := feed.to(t, f); got != want {
					t.Fatalf("%s, %s, %s: flow %d went to b%d, want b%d", state.name, vip, name, i, got, want)
				}
			})
			for _, name := range followers() {
				if moved[name] == 0 {
					t.Errorf("%s, %s, %s: the new ring moves nobody", state.name, vip, name)
				}
			}
		}
	}
	balanced(t, d.Forwarder)
}

// numberIn is the number of the address that a backend has among others.
func numberIn(b []edge.TableBackend, id edge.BackendID) int {
	at := slices.IndexFunc(b, func(b edge.TableBackend) bool { return b.ID == id })
	return int(b[at].Addr.As4()[3]) - 100
}
