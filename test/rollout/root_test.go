package rollout

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// The versions that the package is built in: nodes have the old one first. What Debian
// compares as higher is the new one.
const oldVersion, newVersion = "1.2.0", "1.3.0"

// command is what has to work on the machine itself; with everything that it starts it
// ends when ctx does.
func command(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w, %w\n%s%s", strings.Join(args, " "), err, context.Cause(ctx), out, errs.String())
	}
	return strings.TrimSpace(string(out)), err
}

// baseRoot unpacks the root that all nodes lie over into dir, and makes it first if it
// is not kept. What is kept was made by the very script that would make it now.
func baseRoot(ctx context.Context, dir string) error {
	script, err := os.ReadFile("testdata/root.sh")
	if err != nil {
		return fmt.Errorf("read what makes the root: %w", err)
	}
	kept := *cache
	if kept == "" {
		kept = filepath.Dir(dir)
	}
	if kept, err = filepath.Abs(kept); err != nil {
		return fmt.Errorf("find folder of the root: %w", err)
	}
	tarball := filepath.Join(kept, fmt.Sprintf("root-%.6x.tar.zst", sha256.Sum256(script)))
	if _, err := os.Stat(tarball); err != nil {
		if err := os.MkdirAll(kept, 0o755); err != nil {
			return fmt.Errorf("make folder of the root: %w", err)
		}
		// What mmdebstrap mounts goes with its namespace, however it ends.
		if _, err := command(ctx, nil, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "testdata/root.sh", tarball); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make folder of the root: %w", err)
	}
	_, err = command(ctx, nil, "tar", "-C", dir, "--zstd", "--numeric-owner", "-xpf", tarball)
	return err
}

// built has the packages by their versions: two tests need not build them twice, and the
// folder of the first goes with its lab.
var built struct {
	sync.Mutex
	packages map[string][]byte
}

// packages lays the package in both versions into dir, and returns the paths by their
// versions.
func packages(ctx context.Context, dir string) (map[string]string, error) {
	built.Lock()
	defer built.Unlock()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make folder of packages: %w", err)
	}
	if built.packages == nil {
		var err error
		if built.packages, err = build(ctx, dir); err != nil {
			return nil, err
		}
	}
	paths := map[string]string{}
	for version, deb := range built.packages {
		paths[version] = filepath.Join(dir, fmt.Sprintf("catchment-edge_%s_amd64.deb", version))
		if err := os.WriteFile(paths[version], deb, 0o644); err != nil {
			return nil, fmt.Errorf("write package: %w", err)
		}
	}
	return paths, nil
}

// build builds both versions at once.
func build(ctx context.Context, dir string) (map[string][]byte, error) {
	versions := []string{oldVersion, newVersion}
	debs := make([][]byte, len(versions))
	var g errgroup.Group
	for i, version := range versions {
		g.Go(func() error {
			path, err := command(ctx, []string{"VERSION=" + version, "OUT=" + dir, "COMPRESSION=0"}, "../../image/deb/build.sh")
			if err == nil {
				debs[i], err = os.ReadFile(path)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("build package: %w", err)
	}
	return map[string][]byte{oldVersion: debs[0], newVersion: debs[1]}, nil
}
