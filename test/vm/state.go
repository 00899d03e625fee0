package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/catchment-dev/edge/test/lab"
)

// migration is what qemu says of a state that is being saved or loaded.
type migration struct {
	Status string `json:"status"`
	Error  string `json:"error-desc"`
}

// Save writes the state of the running machine (memory, devices) to a file and ends the
// machine: its disk and variables are then as that state knows them. Copies of the
// three make as many machines as wanted that go on from there, without the minute that
// a boot takes.
func (m *Machine) Save(ctx context.Context, path string) error {
	if strings.ContainsAny(path, "'\\") {
		return fmt.Errorf("save machine: %s: no path for a shell", path)
	}
	defer m.Kill()
	// Unbounded, and not beside the running system: there is nobody to go on serving.
	for _, step := range []struct {
		command string
		args    any
	}{
		{"stop", nil},
		{"migrate-set-parameters", map[string]any{"max-bandwidth": int64(1) << 40}},
		{"migrate", map[string]any{"uri": "exec:cat > '" + path + "'"}},
	} {
		if err := m.control.do(ctx, step.command, step.args, nil); err != nil {
			return fmt.Errorf("save machine: %w", err)
		}
	}
	return m.awaitMigration(ctx, "save machine")
}

// Restore starts a machine that goes on from a saved state. The spec is that of the
// machine which was saved, but for Dir and the files, which are copies.
func Restore(ctx context.Context, h *lab.Host, s Spec, path string) (*Machine, error) {
	if strings.ContainsAny(path, "'\\") {
		return nil, fmt.Errorf("restore machine: %s: no path for a shell", path)
	}
	s.Incoming = true
	m, err := Start(ctx, h, s)
	if err != nil {
		return nil, err
	}
	err = m.control.do(ctx, "migrate-incoming", map[string]any{"uri": "exec:cat '" + path + "'"}, nil)
	if err == nil {
		err = m.awaitMigration(ctx, "restore machine")
	}
	if err == nil {
		err = m.control.do(ctx, "cont", nil, nil)
	}
	if err != nil {
		m.Kill()
		return nil, fmt.Errorf("restore machine: %w; it said:\n%s", err, m.Console.Tail(20))
	}
	return m, nil
}

func (m *Machine) awaitMigration(ctx context.Context, what string) error {
	failed := errors.New("")
	err := lab.UntilEvery(ctx, lookEvery, what, func() error {
		var is migration
		if err := m.control.do(ctx, "query-migrate", nil, &is); err != nil {
			return err
		}
		switch is.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			failed = fmt.Errorf("%s: qemu: %s %s", what, is.Status, is.Error)
			return nil
		}
		return fmt.Errorf("it is %q", is.Status)
	})
	if failed.Error() != "" {
		return failed
	}
	return err
}
