package ansible

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// report is verify.json.
type report struct {
	Worst    string
	Findings []struct{ Severity, Node, What, Remedy string }
}

func (f *fleet) verify(ctx context.Context) error {
	folder := filepath.Join(f.dir, "report")
	f.Lab.Routers["r-b"].Kill()
	err := story.Until(ctx, "b1 has lost its peer", func() error {
		st, err := f.b1().Status(ctx)
		if err == nil && st.Speaker.Peers[0].Session == "established" {
			err = errors.New("it has not")
		}
		return err
	})
	if err != nil {
		return err
	}
	out, err := f.playbook(ctx, f.a1().Host, "verify", "-e", "verify_report="+folder)
	if err == nil {
		return fmt.Errorf("verify finds nothing wrong:\n%s", out)
	}
	r, text, err := readReport(folder)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	f.t.Logf("%s", text)
	if err := r.names("critical", "b1", "BGP peer r-b"); err != nil {
		return err
	}
	err = errors.Join(r.names("critical", "c1", "not reached"), r.names("warning", "a1", "does not know the node c1"),
		r.names("critical", "b1", "www.example.net.crt ends in")) // those of the lab end within a day
	if err != nil {
		return err
	}
	if !strings.Contains(text, "| critical | b1 | BGP peer r-b") || !strings.Contains(out, "BGP peer r-b") {
		return fmt.Errorf("the report and what is printed do not name the peer:\n%s\n%s", text, out)
	}
	if err := f.tellsNoSecret(folder, out); err != nil {
		return err
	}
	if err := f.Lab.Routers["r-b"].Start(ctx); err != nil {
		return err
	}
	for _, b := range f.Lab.Boxes {
		if _, err := f.does(ctx, false, b, "edge_status", on(b, map[string]any{"wait": "120s", "times": 3, "interval": "500ms"})); err != nil {
			return err
		}
	}
	if out, err = f.playbook(ctx, f.a1().Host, "verify", "-e", "verify_report="+folder, "-e", "verify_fail_on=never",
		"-e", `{"verify_limits": {"certificate_critical_days": 0, "certificate_warning_days": 0}}`); err != nil || strings.Count(out, "changed=0") != 4 {
		return fmt.Errorf("%w\n%s", err, out)
	}
	r, _, err = readReport(folder)
	if err != nil {
		return err
	}
	for _, x := range r.Findings {
		f.t.Logf("%+v", x)
		if strings.Contains(x.What, "certificate") {
			return fmt.Errorf("the limits are not those that were given: %+v", x)
		}
		if x.Severity == "critical" && x.Node != "c1" || x.Node == "b1" && strings.Contains(x.What, "BGP peer") {
			return fmt.Errorf("a fleet that is well but for c1: %+v", x)
		}
	}
	return nil
}

func (r report) names(severity, node, what string) error {
	for _, x := range r.Findings {
		if x.Severity == severity && x.Node == node && strings.Contains(x.What, what) && x.Remedy != "" {
			return nil
		}
	}
	return fmt.Errorf("no finding %s of %s says %q: %+v", severity, node, what, r.Findings)
}

func readReport(folder string) (r report, text string, err error) {
	doc, err := os.ReadFile(filepath.Join(folder, "verify.json"))
	if err == nil {
		err = json.Unmarshal(doc, &r)
	}
	md, also := os.ReadFile(filepath.Join(folder, "verify.md"))
	return r, string(md), errors.Join(err, also)
}

// tellsNoSecret looks for the secrets of the lab in what verify has told.
func (f *fleet) tellsNoSecret(folder, printed string) error {
	doc, err := os.ReadFile(filepath.Join(folder, "verify.json"))
	if err != nil {
		return err
	}
	looked := 0
	for _, name := range []string{"ring.seed", "gossip.key"} {
		secret, err := os.ReadFile(filepath.Join(f.Lab.Dir(), "secrets", name))
		if err != nil {
			return err
		}
		text := strings.TrimSpace(string(secret))
		if looked += len(text); strings.Contains(string(doc)+printed, text) {
			return fmt.Errorf("%s is in the report", name)
		}
	}
	if looked < 32 {
		return errors.New("the secrets are too short to be looked for")
	}
	return nil
}

var (
	seedLine = regexp.MustCompile(`ring_seed_file: (\S+)`)
	certLine = regexp.MustCompile(`cert_file: ([^,\s]+)`)
)

// configOf is what verify wants to know of the configuration of a box.
func configOf(b *lab.Box) (map[string]any, error) {
	yaml, err := b.Config()
	if err != nil {
		return nil, err
	}
	seed := seedLine.FindStringSubmatch(yaml)
	if seed == nil {
		return nil, errors.New("the configuration has no ring_seed_file")
	}
	var certificates []any
	for _, m := range certLine.FindAllStringSubmatch(yaml, -1) {
		certificates = append(certificates, map[string]any{"cert_file": m[1]})
	}
	if len(certificates) == 0 {
		return nil, errors.New("the configuration has no certificate")
	}
	return map[string]any{
		"node":  map[string]any{"run_dir": b.RunDir(), "state_dir": filepath.Dir(b.RunDir())},
		"fleet": map[string]any{"ring_seed_file": seed[1], "proxy": map[string]any{"certificates": certificates}},
	}, nil
}
