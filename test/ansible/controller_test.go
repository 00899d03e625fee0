package ansible

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/test/lab"
)

// controller is ansible with the collection of this tree and folders of its own.
type controller struct {
	dir, inventory string
	env            []string
}

func newController(t *testing.T, dir string) *controller {
	t.Helper()
	for _, tool := range []string{"ansible", "ansible-playbook"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%v: apt-get install ansible-core", err)
		}
	}
	tree, err := filepath.Abs("../../ansible")
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "collections", "ansible_collections", "catchment")
	if err := errors.Join(os.MkdirAll(at, 0o755), os.Symlink(tree, filepath.Join(at, "edge"))); err != nil {
		t.Fatal(err)
	}
	c := &controller{dir: dir, inventory: filepath.Join(dir, "inventory.json")}
	c.env = append(os.Environ(),
		"ANSIBLE_COLLECTIONS_PATH="+filepath.Join(dir, "collections"), "ANSIBLE_CONFIG="+filepath.Join(dir, "none.cfg"),
		"ANSIBLE_LOCAL_TEMP="+filepath.Join(dir, "local"), "ANSIBLE_REMOTE_TEMP="+filepath.Join(dir, "remote"),
		"ANSIBLE_NOCOLOR=1", "ANSIBLE_PYTHON_INTERPRETER=/usr/bin/python3", "ANSIBLE_HOST_KEY_CHECKING=0", "LC_ALL=C.UTF-8",
	)
	if err := os.WriteFile(filepath.Join(dir, "none.cfg"), []byte("[defaults]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return c
}

// answer is what a module returned.
type answer struct {
	Changed   bool            `json:"changed"`
	Failed    bool            `json:"-"` // as the exit code says
	Msg       string          `json:"msg"`
	Healthy   bool            `json:"healthy"`
	Ready     bool            `json:"ready"`
	WhyNot    []string        `json:"why_not"`
	Ours      string          `json:"ours"`
	TakenBack bool            `json:"taken_back"`
	Permitted bool            `json:"permitted"`
	Renewed   bool            `json:"renewed"`
	Marked    map[string]bool `json:"marked"`
	Routes    []struct {
		Peer, Prefix string
		Sent, Marked bool
	} `json:"routes"`
	InTheWay []struct {
		Prefix, Site, Node, Why string
	} `json:"in_the_way"`
	Lock *struct {
		Owner string
		Left  float64 `json:"seconds_left"`
	} `json:"lock"`
	Box struct {
		Certificates []struct {
			NotAfter float64 `json:"not_after"`
		} `json:"certificates"`
	} `json:"box"`
}

// module runs one module in a box, as an ad hoc command does.
func (c *controller) module(ctx context.Context, b *lab.Box, name string, args map[string]any, more ...string) (answer, error) {
	var out answer
	text, err := json.Marshal(args)
	if err != nil {
		return out, err
	}
	line := append([]string{b.Name(), "-i", c.inventory, "-o", "-m", "catchment.edge." + name, "-a", string(text)}, more...)
	stdout, stderr, err := c.run(ctx, b.Host, "ansible", line...)
	_, doc, found := strings.Cut(stdout, "=> ")
	if !found {
		return out, fmt.Errorf("%s gave no answer: %w: %s %s", name, err, stdout, stderr)
	}
	if err := json.Unmarshal([]byte(doc), &out); err != nil {
		return out, fmt.Errorf("read the answer of %s: %w: %s", name, err, stdout)
	}
	out.Failed = err != nil
	return out, nil
}

// playbook runs one of the collection in a host, and returns what it printed.
func (c *controller) playbook(ctx context.Context, h *lab.Host, name string, args ...string) (string, error) {
	stdout, stderr, err := c.run(ctx, h, "ansible-playbook", append([]string{"catchment.edge." + name, "-i", c.inventory}, args...)...)
	return stdout + stderr, err
}

func (c *controller) run(ctx context.Context, h *lab.Host, name string, args ...string) (stdout, stderr string, err error) {
	cmd := exec.Command(name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env, cmd.Dir = &out, &errs, c.env, c.dir
	p, err := h.Start(cmd)
	if err != nil {
		return "", "", err
	}
	select {
	case <-p.Done():
		return out.String(), errs.String(), p.Err()
	case <-ctx.Done():
		p.Kill()
		return out.String(), errs.String(), fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), context.Cause(ctx))
	}
}

// describe writes the inventory: every box, and one that nobody can reach.
func (c *controller) describe(l *lab.Lab) error {
	hosts := map[string]any{"c1": map[string]any{"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_connection": "ssh"}}
	for name, b := range l.Boxes {
		config, err := configOf(b)
		if err != nil {
			return err
		}
		hosts[name] = map[string]any{
			"ansible_connection": "local", "edge_node": name, "edge_site": b.Site, "edge_config": config, "verify_config_path": b.ConfigPath(),
		}
	}
	fleet := map[string]any{
		"sites":    []any{map[string]any{"name": "a", "nodes": []string{"a1"}}, map[string]any{"name": "b", "nodes": []string{"b1"}}, map[string]any{"name": "c", "nodes": []string{"c1"}}},
		"prefixes": []any{map[string]any{"prefix": lab.Prefix4.String(), "min_sites": 1}, map[string]any{"prefix": lab.Prefix6.String(), "min_sites": 1}},
	}
	text, err := json.Marshal(map[string]any{"all": map[string]any{"children": map[string]any{"edge": map[string]any{
		"hosts": hosts, "vars": map[string]any{"edge_fleet": fleet, "edge_fleet_dir": c.dir, "ansible_python_interpreter": "/usr/bin/python3"},
	}}}})
	if err != nil {
		return err
	}
	return os.WriteFile(c.inventory, text, 0o644)
}
