// Command manual writes the man pages and the completions of the package, from
// what the commands themselves say: their -h, the comment above their package
// clause, and reference.yaml; and Debian's changelog from ours. It owns no text beside what joins these, so that a
// page cannot say what the command does not. It never asks a daemon anything.
// The build of the package runs it, nothing else does.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	var s source
	flag.StringVar(&s.bin, "bin", "", "`folder` of the built commands")
	flag.StringVar(&s.repository, "source", ".", "`folder` of the sources")
	flag.StringVar(&s.version, "release", "", "`version` for the foot of the pages")
	day := flag.Int64("date", 0, "date for the foot of the pages, in `seconds` since 1970")
	out := flag.String("out", "", "`folder` to write to: man and completions and the changelog go below it")
	flag.Parse()
	s.date = time.Unix(*day, 0).UTC().Format(time.DateOnly)
	if err := write(s, *out); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

// source is where the text comes from.
type source struct {
	bin, repository, version, date string
}

// write writes everything below the folder out, as it lies below /usr/share.
func write(s source, out string) error {
	files := map[string]string{}
	for _, name := range []string{"edged", "edgebgp", "edgeproxy"} {
		text, err := daemonPage(s, name)
		if err != nil {
			return fmt.Errorf("make page %s: %w", name, err)
		}
		files["man/man8/"+name+".8"] = text
	}
	for name, page := range map[string]func(source) (string, error){
		"man/man8/edgectl.8": edgectlPage, "man/man5/edge.yaml.5": referencePage, "changelog": changelog,
	} {
		text, err := page(s)
		if err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		files[name] = text
	}
	if err := completions(files); err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join(out, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// completions adds the completions of edgectl. They hold its name alone and ask
// edgectl itself for the rest, when the key is pressed: no tree is needed here.
func completions(files map[string]string) error {
	root := &cobra.Command{Use: "edgectl"}
	var bash, zsh, fish strings.Builder
	if err := root.GenBashCompletionV2(&bash, true); err != nil {
		return fmt.Errorf("make completion of bash: %w", err)
	}
	if err := root.GenZshCompletion(&zsh); err != nil {
		return fmt.Errorf("make completion of zsh: %w", err)
	}
	if err := root.GenFishCompletion(&fish, true); err != nil {
		return fmt.Errorf("make completion of fish: %w", err)
	}
	files["bash-completion/completions/edgectl"] = bash.String()
	files["zsh/vendor-completions/_edgectl"] = zsh.String()
	files["fish/vendor_completions.d/edgectl.fish"] = fish.String()
	return nil
}
