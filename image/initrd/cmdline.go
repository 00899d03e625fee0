package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/catchment-dev/edge/image/verity"
)

type rootHash = verity.Hash

// cmdline is what the kernel command line says to the initrd.
type cmdline struct {
	root    rootHash // roothash=
	version string   // edge.version=
}

// mostVersion is the longest version, in bytes: it has to fit into file names.
const mostVersion = 64

// parseCmdline reads the kernel command line. Two different values of one word
// are refused: whoever could add one would decide which is taken.
func parseCmdline(line string) (cmdline, error) {
	values := map[string]string{}
	for _, word := range words(line) {
		key, value, _ := strings.Cut(word, "=")
		if key != "roothash" && key != "edge.version" {
			continue
		}
		if old, ok := values[key]; ok && old != value {
			return cmdline{}, fmt.Errorf("the kernel command line has two values of %s=: %.80q and %.80q", key, old, value)
		}
		values[key] = value
	}
	if values["roothash"] == "" {
		return cmdline{}, errors.New("the kernel command line has no roothash=: there is no root that could be trusted")
	}
	root, err := verity.ParseHash(values["roothash"])
	if err != nil {
		return cmdline{}, fmt.Errorf("kernel command line: %w", err)
	}
	if !isVersion(values["edge.version"]) {
		return cmdline{}, fmt.Errorf("the kernel command line has no edge.version= that is a version: %.80q", values["edge.version"])
	}
	return cmdline{root: root, version: values["edge.version"]}, nil
}

func isVersion(s string) bool {
	const allowed = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-~_"
	return s != "" && len(s) <= mostVersion && strings.Trim(s, allowed) == ""
}

// words splits the line as the kernel does: at white space outside of double
// quotes, which may stand around a value or around a word. What is behind "--"
// is for /sbin/init alone.
func words(line string) (out []string) {
	var word strings.Builder
	quoted := false
	end := func() {
		if word.Len() > 0 {
			out = append(out, word.String())
		}
		word.Reset()
	}
	for _, r := range line {
		switch {
		case r == '"':
			quoted = !quoted
		case !quoted && strings.ContainsRune(" \t\n", r):
			end()
			if len(out) > 0 && out[len(out)-1] == "--" {
				return out[:len(out)-1]
			}
		default:
			word.WriteRune(r)
		}
	}
	end()
	return out
}
