package rollout

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/operator"
)

// vars are extra variables of a playbook.
type vars = operator.Vars

// newOperator makes a host of the lab from which the fleet is run; it knows the nodes
// by their host keys.
func newOperator(ctx context.Context, l *lab.Lab) (*operator.Operator, error) {
	return operator.New(ctx, l.Clients[operatorName].Host, filepath.Join(l.Dir(), "operator"), true)
}

// begin starts a playbook of the collection, such as site or rollout.
func (f *fleet) begin(playbook string, extra vars, args ...string) (*operator.Running, error) {
	if err := f.rememberSecrets(); err != nil {
		return nil, err
	}
	return f.operator.BeginPlay(playbook, extra, args...)
}

// play runs a playbook to its end.
func (f *fleet) play(ctx context.Context, playbook string, extra vars, args ...string) (operator.Result, error) {
	r, err := f.begin(playbook, extra, args...)
	if err != nil {
		return operator.Result{}, err
	}
	got, err := r.Result(ctx)
	if *verbose {
		f.t.Logf("%s\n%s", playbook, r.Text())
	}
	return got, errors.Join(err, f.rememberSecrets())
}

// playsWell is play where every node is to succeed.
func (f *fleet) playsWell(ctx context.Context, t *testing.T, playbook string, extra vars, args ...string) (operator.Result, error) {
	t.Helper()
	return f.playsOn(ctx, t, f.nodes, playbook, extra, args...)
}

// playsOn is play where these nodes are to succeed, and the whole of it.
func (f *fleet) playsOn(ctx context.Context, t *testing.T, nodes []*node, playbook string, extra vars, args ...string) (operator.Result, error) {
	t.Helper()
	got, err := f.play(ctx, playbook, extra, args...)
	if err != nil {
		return got, err
	}
	t.Logf("%5.1f s  %s: %s", got.Took.Seconds(), playbook, got)
	for _, n := range nodes {
		h, ok := got.Hosts[n.Name()]
		if !ok || h.Failed > 0 || h.Unreachable > 0 {
			return got, fmt.Errorf("%s of %s: %+v\n%s", playbook, n.Name(), h, got.Text)
		}
	}
	if got.Failed {
		return got, fmt.Errorf("%s ends with an error\n%s", playbook, got.Text)
	}
	return got, nil
}

// copyTree copies a folder of the machine's.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, rel)), 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o600)
	})
}
