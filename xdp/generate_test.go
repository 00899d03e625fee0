package xdp

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What is committed must be what `go generate` makes of the sources, and the
// same bytes in whatever folder the checkout lies.
func TestGenerated(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		copyFile(t, filepath.Join("..", name), filepath.Join(dir, name))
	}
	check(t, os.MkdirAll(filepath.Join(dir, "xdp"), 0o755))
	check(t, os.CopyFS(filepath.Join(dir, "xdp", "bpf"), os.DirFS("bpf")))
	copyFile(t, "gen.go", filepath.Join(dir, "xdp", "gen.go"))
	cmd := exec.Command("go", "generate", ".")
	cmd.Dir = filepath.Join(dir, "xdp")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go generate: %v\n%s", err, out)
	}
	for _, name := range []string{"edge_bpfel.go", "edge_bpfel.o"} {
		want, err := os.ReadFile(filepath.Join(dir, "xdp", name))
		check(t, err)
		got, err := os.ReadFile(name)
		check(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what go generate makes: run it", name)
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	check(t, err)
	check(t, os.WriteFile(to, b, 0o644))
}
