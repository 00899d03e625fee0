package guard

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

func manyKeys(n int) [][]byte {
	var out [][]byte
	for i := range n {
		out = append(out, []byte(fmt.Sprintf("%032d", i)))
	}
	return out
}

func TestReadNodeKey(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, text []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := filepath.Join(dir, "openssl.key")
	if out, err := exec.Command("openssl", "genpkey", "-algorithm", "ed25519", "-out", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	key, err := ReadNodeKey(path)
	if err != nil {
		t.Fatal(err)
	}
	der, err := exec.Command("openssl", "pkey", "-in", path, "-pubout", "-outform", "DER").Output()
	if public := PublicKey(key); err != nil || !strings.HasSuffix(string(der), string(public[:])) {
		t.Errorf("openssl has another public key: %v", err)
	}
	text, _ := os.ReadFile(path)
	other, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	otherDER, _ := x509.MarshalPKCS8PrivateKey(other)
	block := func(kind string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}) }
	for path, want := range map[string]string{
		write("group", text, 0o640):                             "chmod 0600",
		write("world", text, 0o604):                             "(mode 0604); chmod 0600",
		write("empty", nil, 0o600):                              "does not hold a PEM block PRIVATE KEY; make one with: edgectl guard key",
		write("public", block("PUBLIC KEY", der), 0o600):        "does not hold a PEM block PRIVATE KEY",
		write("cut", block("PRIVATE KEY", otherDER[:9]), 0o600): "does not hold a private key in PKCS#8",
		write("ecdsa", block("PRIVATE KEY", otherDER), 0o600):   "holds a key of another kind (*ecdsa.PrivateKey), not Ed25519",
		write("large", make([]byte, maxKeyFile+1), 0o600):       "larger than",
		filepath.Join(dir, "none"):                              "no such file",
		dir:                                                     "not a regular file",
	} {
		if _, err := ReadNodeKey(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func TestCheckNodeKey(t *testing.T) {
	roster := newFleet(t, 2, 1).roster
	for _, c := range []struct {
		key, self, want string
	}{
		{"a", "a", ""},
		{"b", "a", "it is that of node b, not of a"},
		{"z", "a", "correct public_key on every box"},
		{"z", "z", "node z is not in the roster"},
	} {
		err := CheckNodeKey(keyOf(c.key), edge.NodeID(c.self), roster)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("key of %s at %s: %v", c.key, c.self, err)
		}
	}
}

func TestReadGossipKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	line := func(k []byte) string { return base64.StdEncoding.EncodeToString(k) + "\n" }
	var many strings.Builder
	for _, k := range manyKeys(MaxKeys + 1) {
		many.WriteString(line(k))
	}
	for text, want := range map[string]string{
		line(key1): "", "# new\n" + line(key2) + "\n# old\n  " + line(key1): "",
		"":                      "0 gossip keys are not from 1 to 8",
		"# none\n":              "0 gossip keys",
		many.String():           "9 gossip keys",
		line(key1) + line(key1): "gossip key 2 is given twice",
		line(key1) + "\nodd\n":  "line 3 does not hold 32 bytes in base64",
		line(key1[:16]):         "line 1 does not hold 32 bytes",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := ReadGossipKeys(path)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, keys, err)
		}
	}
}

// TestKeyringSet: from any set of keys to any other, the first encrypts and all
// are there. Under the race detector it also shows that no reader is disturbed.
func TestKeyringSet(t *testing.T) {
	all := manyKeys(4)
	var sets [][][]byte
	for n := range 256 { // up to four keys, in any order
		var set [][]byte
		for i := range 4 {
			if k := all[n>>(2*i)&3]; !has(set, k) {
				set = append(set, k)
			}
		}
		sets = append(sets, set)
	}
	k, err := newKeyring(all[:1])
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				if total(k.ring.GetKeys()) == 0 {
					panic("no key")
				}
			}
		}
	}()
	for i, from := range sets {
		for j := 0; j < len(sets); j += 7 {
			to := sets[(i+j)%len(sets)]
			if err := k.set(from); err != nil {
				t.Fatal(err)
			}
			if err := k.set(to); err != nil {
				t.Fatal(err)
			}
			got := k.ring.GetKeys()
			if len(got) != len(to) || KeyName(got[0]) != KeyName(to[0]) || slices.ContainsFunc(to, func(b []byte) bool { return !has(got, b) }) {
				t.Fatalf("%q to %q gives %q", from, to, got)
			}
		}
	}
	close(stop)
	<-done
	if k.set(nil) == nil || len(k.names()) == 0 || len(k.names()[0]) != 8 {
		t.Errorf("no keys are taken, or names are %q", k.names())
	}
}

// total reads all that memberlist reads of the keys.
func total(keys [][]byte) int {
	n := 0
	for _, k := range keys {
		n += len(k)
	}
	return n
}

// rotation is a fleet in which every node asks all others, for a prefix of its
// own, all the time.
type rotation struct {
	*fleet
	prefixes []edge.Prefix
}

// load has every node ask and get leave; that takes messages between all pairs.
func (r *rotation) load(step string) {
	r.t.Helper()
	for i, n := range r.nodes {
		n.Publish(edge.Report{Says: claim(edge.Reason(step))})
		n.Wish(r.prefixes[i].Net, sick)
	}
	r.until(step+": all get leave", func() bool {
		for i, n := range r.nodes {
			if !n.Permit(r.prefixes[i].Net).OK {
				return false
			}
		}
		return true
	})
	for i, n := range r.nodes {
		n.Wish(r.prefixes[i].Net, Wish{})
	}
	r.until(step+": all know what all say", func() bool {
		for _, n := range r.nodes {
			for _, m := range n.Members() {
				if m.Age < 0 || len(m.Report.Says) != 1 || string(m.Report.Says[0].Reason) != step {
					return false
				}
			}
		}
		return true
	})
	for _, n := range r.nodes {
		if n.alive() != len(r.nodes)-1 || n.State().Dropped["wrong_key"] > 0 {
			r.t.Fatalf("%s: %s sees %d alive, dropped %v", step, n.ID, n.alive(), n.State().Dropped)
		}
	}
}

// lost counts the batches that were sent and never came.
func (r *rotation) lost() (lost, taken uint64) {
	for _, n := range r.nodes {
		n.mu.Lock()
		for _, s := range n.senders {
			lost += s.got.top - s.taken
			taken += s.taken
		}
		n.mu.Unlock()
	}
	return lost, taken
}

// TestRotation: a new key is installed, used, and the old one removed, each step
// on half of the nodes first. No message is lost, and nobody is seen dead.
func TestRotation(t *testing.T) {
	t.Parallel()
	r := &rotation{fleet: newFleet(t, 5, 4)}
	for i := range r.roster {
		r.prefixes = append(r.prefixes, edge.Prefix{Net: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24), MinSites: 4})
	}
	for i := range r.roster {
		r.start(i, func(o *Options) {
			o.Prefixes, o.Held = r.prefixes, func(netip.Prefix) bool { return true }
			o.Policy.PromiseLease, o.Policy.AskTimeout = 8*time.Second, 2*time.Second
		})
	}
	r.until("all see all alive", func() bool { return r.seen(4) })
	r.log.dead.Store(0)
	r.load("before")
	for _, step := range []struct {
		name string
		keys [][]byte
	}{{"install", [][]byte{key1, key2}}, {"use", [][]byte{key2, key1}}, {"remove", [][]byte{key2}}} {
		for half := range 2 {
			for i := half; i < len(r.nodes); i += 2 {
				if err := r.nodes[i].Rekey(step.keys); err != nil {
					t.Fatal(err)
				}
				if got := r.nodes[i].State().Keys; len(got) != len(step.keys) || got[0] != KeyName(step.keys[0]) {
					t.Errorf("%s: keys %q", step.name, got)
				}
			}
			r.load(fmt.Sprintf("%s, half %d", step.name, half+1))
		}
	}
	r.until("all have come", func() bool { lost, _ := r.lost(); return lost == 0 })
	_, taken := r.lost()
	t.Logf("%d batches of messages, none lost", taken)
	if dead := r.log.dead.Load(); dead > 0 || taken < 100 {
		t.Errorf("%d times a member was seen dead; %d batches", dead, taken)
	}
	if err := r.nodes[0].Rekey([][]byte{key1[:9]}); err == nil || len(r.nodes[0].State().Keys) != 1 {
		t.Error("took a short key")
	}
}

// TestDemand: it is known only if all that live are heard.
func TestDemand(t *testing.T) {
	f := newFleet(t, 3, 1)
	o := f.options(0)
	o.Held = func(netip.Prefix) bool { return true }
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, want float64, known bool) {
		t.Helper()
		g.mu.Lock()
		defer g.mu.Unlock()
		if got, ok := g.demand(); got != want || ok != known {
			t.Errorf("%s: %v, %t", what, got, ok)
		}
	}
	hear := func(id edge.NodeID, seq uint64, demand float64, age time.Duration) {
		raw, err := encodeReport(edge.Report{Node: id, Site: edge.SiteID(id), Boot: 5, Seq: seq, Load: edge.LoadRow{Demand: demand}}, keyOf(id))
		if err != nil {
			t.Fatal(err)
		}
		g.hear(raw, age, false)
		g.readLate(time.Now().Add(takeEvery))
		if age < demandAge { // else others have passed it on
			g.note(pulse{head: head{node: id, site: edge.SiteID(id), boot: 5, seq: seq, to: "a", toBoot: g.boot}, stands: seq, age: age}, time.Now())
		}
	}
	check("nothing is known", 0, false)
	g.Publish(edge.Report{Load: edge.LoadRow{Demand: 1}})
	hear("b", 1, 10, 0)
	check("c was never heard", 0, false)
	hear("c", 1, 100, 2*demandAge)
	check("c is dead for long", 11, true)
	g.up.on["c"] = true
	check("c lives and is not heard", 0, false)
	hear("c", 2, 100, time.Second)
	check("all are heard", 111, true)
	g.Publish(edge.Report{Load: edge.LoadRow{Demand: 2}})
	check("the newest of this node, though not sent yet", 112, true)
	g.up.on["c"] = false
	check("c has just died", 112, true)
}
