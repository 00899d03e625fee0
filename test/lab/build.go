package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Commands are what Build makes.
var Commands = []string{Speaker, Proxy, Control, "edgectl"}

// Build builds the four commands into dir, with the race detector if wanted.
// The working directory must be inside the module.
func Build(ctx context.Context, dir string, race bool) error {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("find module: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(mod)))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make folder of commands: %w", err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("find folder of commands: %w", err)
	}
	args := []string{"build", "-buildvcs=false", "-o", abs + string(filepath.Separator)}
	if race {
		args = append(args, "-race")
	}
	for _, c := range Commands {
		args = append(args, "./cmd/"+c)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return errors.Join(fmt.Errorf("build commands: %w", err), errors.New(strings.TrimSpace(out.String())))
	}
	return nil
}
