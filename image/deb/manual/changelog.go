package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// maintainer signs the entries; control names the same.
const maintainer = "Catchment developers <catchment-dev@users.noreply.github.com>"

var heading2 = regexp.MustCompile(`^## (\S+)(?: - (\d{4}-\d\d-\d\d))?$`)

// changelog makes Debian's form of CHANGELOG.md: "## Unreleased" is the version
// that is being built, "## 1.2.0 - 2026-01-31" one before it.
func changelog(s source) (string, error) {
	b, err := os.ReadFile(filepath.Join(s.repository, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	var out strings.Builder
	var entry []string
	version, date := "", ""
	end := func() error {
		if version == "" {
			return nil
		}
		at, err := time.Parse(time.DateOnly, date)
		if err != nil || len(entry) == 0 {
			return fmt.Errorf("version %s has no date or no line: \"## VERSION - YYYY-MM-DD\", then \"- \"", version)
		}
		fmt.Fprintf(&out, "catchment-edge (%s) stable; urgency=medium\n\n%s\n -- %s  %s\n\n",
			version, strings.Join(entry, ""), maintainer, at.Format(time.RFC1123Z))
		return nil
	}
	item := ""
	flush := func() {
		if item != "" {
			entry = append(entry, wrap(item))
		}
		item = ""
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\n")
		m := heading2.FindStringSubmatch(line)
		switch {
		case m != nil:
			flush()
			if err := end(); err != nil {
				return "", err
			}
			version, date, entry = strings.ReplaceAll(m[1], "-", "~"), m[2], nil
			if m[1] == "Unreleased" {
				version, date = s.version, s.date
			}
		case strings.HasPrefix(line, "- "):
			flush()
			item = line[2:]
		case strings.HasPrefix(line, "  ") && item != "":
			item += " " + strings.TrimSpace(line)
		default:
			flush()
		}
	}
	flush()
	if err := end(); err != nil {
		return "", err
	}
	if out.Len() == 0 {
		return "", fmt.Errorf("CHANGELOG.md has no version")
	}
	return strings.TrimRight(out.String(), "\n") + "\n", nil
}

// wrap writes one item in lines of at most 80 characters.
func wrap(item string) string {
	item = strings.NewReplacer("**", "", "`", "").Replace(item)
	var b strings.Builder
	line := "  *"
	for _, word := range strings.Fields(item) {
		if len(line)+1+len(word) > 80 {
			b.WriteString(line + "\n")
			line = "   "
		}
		line += " " + word
	}
	return b.String() + line + "\n"
}
