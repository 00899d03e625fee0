package ansible

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// keyFleet is three sites whose shared keys are files of each box's own, and the
// folder of secrets that an operator has.
type keyFleet struct {
	*controller
	story.Teller
	t       *testing.T
	bin     string
	secrets string // the folder secrets of the operator
	// seen are all keys that there have ever been: none may be printed.
	seen map[string]bool
}

var keyLine = regexp.MustCompile(`(?m)^    key_file: (.*gossip\.key)$`)

// boxFile is where a box has its file of keys.
func (f *keyFleet) boxFile(box, kind string) string {
	return filepath.Join(f.dir, "boxes", box, kind+".key")
}

func (f *keyFleet) source(kind string) string { return filepath.Join(f.secrets, "fleet", kind+".key") }

// TestKeys has the playbook change the keys of boxes that gossip all the time.
func TestKeys(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	f := &keyFleet{t: t, controller: newController(t, t.TempDir()), bin: t.TempDir(), seen: map[string]bool{}}
	f.secrets = filepath.Join(f.dir, "secrets")
	if err := lab.Build(ctx, f.bin, false); err != nil {
		t.Fatal(err)
	}
	first := ""
	topology := lab.Topology{
		Regions: []lab.RegionSpec{{Name: "east", Router: "r-a", Origins: 1, Capacity: 500}},
		Edit: func(box, yaml string) string {
			first = keyLine.FindStringSubmatch(yaml)[1]
			yaml = keyLine.ReplaceAllLiteralString(yaml, "    key_file: "+f.boxFile(box, "gossip"))
			return strings.Replace(yaml, "\n  proxy:\n", "\n  proxy:\n    ticket_key_file: "+f.boxFile(box, "ticket")+"\n", 1)
		},
	}
	for _, site := range []string{"a", "b", "c"} {
		topology.Routers = append(topology.Routers, lab.RouterSpec{Name: "r-" + site, Kind: lab.BIRD})
		if site != "a" {
			topology.Cores = append(topology.Cores, lab.CoreSpec{A: "r-a", B: "r-" + site, Delay: time.Millisecond})
		}
		topology.Sites = append(topology.Sites, lab.SiteSpec{Name: site, Router: "r-" + site, Boxes: []lab.BoxSpec{{Name: site + "1"}}})
	}
	l, err := lab.New(ctx, topology)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	f.Teller = story.Teller{Lab: l, Say: t.Logf}
	gossip, err := os.ReadFile(first)
	if err := errors.Join(err, f.furnish(string(gossip)), l.Start(f.bin), f.Settle(ctx), f.allHear(ctx)); err != nil {
		t.Fatalf("%v\n%s", err, l.Logs(40))
	}
	goes(ctx, t, l, func(t *testing.T) { f.t, f.Say = t, t.Logf }, []part{
		{"check mode changes nothing", f.checkMode},
		{"all keys are changed while the boxes hear each other", f.changesAll},
		{"with a box down it stops before the new key is used, and goes on", f.boxDown},
		{"killed in the middle, it goes on", f.killed},
		{"a key that is given, in files of Vault", f.given},
		{"a box is left out, and what has come back is refused", f.leavesOut},
		{"an old file of secrets is refused", f.oldFile},
	})
}

// furnish gives each box its files, and the operator the same.
func (f *keyFleet) furnish(gossip string) error {
	contents := map[string]string{"gossip": gossip, "ticket": newKey()}
	for kind, text := range contents {
		for _, dir := range []string{"", "a1", "b1", "c1"} {
			path := f.source(kind)
			if dir != "" {
				path = f.boxFile(dir, kind)
			}
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				return err
			}
		}
	}
	return f.describe()
}

// describe writes the inventory. A box that is down is one that ssh cannot reach.
func (f *keyFleet) describe(down ...string) error {
	hosts, sites := map[string]any{}, []any{}
	for name, b := range f.Lab.Boxes {
		vars := map[string]any{
			"ansible_connection": "local", "edge_node": name, "edge_kind": "deb",
			"edge_config": map[string]any{
				"node":  map[string]any{"run_dir": b.RunDir()},
				"fleet": map[string]any{"guard": map[string]any{"key_file": f.boxFile(name, "gossip")}, "proxy": map[string]any{"ticket_key_file": f.boxFile(name, "ticket")}},
			},
		}
		if slices.Contains(down, name) {
			vars["ansible_connection"], vars["ansible_host"], vars["ansible_port"] = "ssh", "127.0.0.1", 1
		}
		hosts[name] = vars
		sites = append(sites, map[string]any{"name": b.Site, "nodes": []string{name}})
	}
	text, err := json.Marshal(map[string]any{"all": map[string]any{"children": map[string]any{"edge": map[string]any{
		"hosts": hosts, "vars": map[string]any{
			"edge_fleet": map[string]any{"sites": sites}, "edge_fleet_dir": f.dir, "edge_secrets_dir": f.secrets,
			"edge_keys_edgectl": filepath.Join(f.bin, "edgectl"), "edge_keys_lock_path": filepath.Join(f.dir, "lock", "lock.json"),
			"ansible_python_interpreter": "/usr/bin/python3",
		},
	}}}})
	if err != nil {
		return err
	}
	return os.WriteFile(f.inventory, text, 0o644)
}

func newKey() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d", time.Now().UnixNano()))
	return base64.StdEncoding.EncodeToString(sum[:]) + "\n"
}

// keysOf are the short names of the keys of a file, and whether it says that a
// rotation is on its way. It remembers the keys.
func (f *keyFleet) keysOf(content []byte) (names []string, midway bool) {
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			midway = midway || strings.HasPrefix(line, "# rotation: ")
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			f.t.Errorf("line %q: %v", line, err)
		}
		f.seen[line] = true
		sum := sha256.Sum256(key)
		names = append(names, hex.EncodeToString(sum[:4]))
	}
	return names, midway
}

func (f *keyFleet) operator(kind string) ([]string, bool) {
	content, err := os.ReadFile(f.source(kind))
	if err != nil {
		f.t.Fatal(err)
	}
	return f.keysOf(content)
}

// rotate runs the playbook under a watch over the gossip, and looks that it prints
// no key, not even at its most talkative.
func (f *keyFleet) rotate(ctx context.Context, args ...string) (string, error) {
	f.t.Helper()
	stop := f.hear(ctx)
	out, err := f.playbook(ctx, f.Lab.Boxes["a1"].Host, "rotate_keys", append([]string{"-vvv", "--diff"}, args...)...)
	if heard := stop(); heard != nil {
		return out, fmt.Errorf("%w\n%s", heard, out)
	}
	for _, kind := range []string{"gossip", "ticket"} {
		f.operatorSeen(kind)
	}
	for key := range f.seen {
		if strings.Contains(out, key[:20]) {
			f.t.Errorf("a key is printed by %q", args)
		}
	}
	return out, err
}

// operatorSeen remembers the keys of a file that is not encrypted.
func (f *keyFleet) operatorSeen(kind string) {
	if content, err := os.ReadFile(f.source(kind)); err == nil && !bytes.HasPrefix(content, []byte("$ANSIBLE_VAULT")) {
		f.keysOf(content)
	}
}

// hear looks all the time whether the boxes hear each other.
func (f *keyFleet) hear(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		for tick := time.NewTicker(200 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				done <- nil
				return
			case <-tick.C:
			}
			for name := range f.Lab.Boxes {
				if err := f.deaf(ctx, name, 8*time.Second); err != nil && ctx.Err() == nil {
					tick.Stop()
					done <- err
					return
				}
			}
		}
	}()
	return func() error { cancel(); return <-done }
}

// deaf says whom a box has not heard for so long.
func (f *keyFleet) deaf(ctx context.Context, name string, limit time.Duration) error {
	st, err := f.Lab.Boxes[name].Status(ctx)
	if err != nil {
		return err
	}
	heard := 0
	for _, m := range st.Guard.Members {
		if m.Age >= 0 && m.Age < limit && string(m.Node) != name {
			heard++
		}
	}
	if heard != len(f.Lab.Boxes)-1 || st.Guard.Isolated {
		return fmt.Errorf("%s hears %d of the others: %+v", name, heard, st.Guard.Members)
	}
	return nil
}

func (f *keyFleet) allHear(ctx context.Context) error {
	return f.await(ctx, "all boxes to hear each other", func() bool {
		for name := range f.Lab.Boxes {
			if f.deaf(ctx, name, 3*time.Second) != nil {
				return false
			}
		}
		return true
	})
}

// uses checks what a box goes by.
func (f *keyFleet) uses(ctx context.Context, box string, gossip, ticket []string) error {
	st, err := f.Lab.Boxes[box].Status(ctx)
	if err != nil {
		return err
	}
	if gossip != nil && !slices.Equal(st.Guard.Keys, gossip) {
		return fmt.Errorf("%s has the gossip keys %q, want %q", box, st.Guard.Keys, gossip)
	}
	if ticket != nil && !slices.Equal(st.Proxy.TicketKeys, ticket) {
		return fmt.Errorf("%s has the ticket keys %q, want %q", box, st.Proxy.TicketKeys, ticket)
	}
	return nil
}

// atRest: the operator's file has these numbers of keys, no note, and all boxes go
// by it, whose files have the same bytes.
func (f *keyFleet) atRest(ctx context.Context, boxes ...string) error {
	for kind, n := range map[string]int{"gossip": 1, "ticket": 2} {
		want, err := os.ReadFile(f.source(kind))
		if err != nil {
			return err
		}
		names, midway := f.keysOf(want)
		if midway || len(names) != n {
			return fmt.Errorf("the file of %s keys has %d keys, midway %v", kind, len(names), midway)
		}
		for _, box := range boxes {
			got, err := os.ReadFile(f.boxFile(box, kind))
			if err != nil || !bytes.Equal(got, want) {
				return fmt.Errorf("the %s keys of %s are not those of the operator: %w", kind, box, err)
			}
			if kind == "gossip" {
				err = f.uses(ctx, box, names, nil)
			} else {
				err = f.uses(ctx, box, nil, names)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// await polls until cond holds.
func (f *keyFleet) await(ctx context.Context, what string, cond func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, fmt.Errorf("waited two minutes for %s", what))
	defer cancel()
	for tick := time.NewTicker(20 * time.Millisecond); !cond(); {
		select {
		case <-ctx.Done():
			tick.Stop()
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

func errOf(failed bool, what string) error {
	if failed {
		return errors.New(what)
	}
	return nil
}
