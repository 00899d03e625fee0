package rollout

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge/test/lab"
)

// paths asks a router for those of its boxes.
func (f *fleet) paths(ctx context.Context, r *lab.Router, boxes map[string]string) (paths, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if r.Kind() == lab.BIRD {
		out, err := askBIRD(ctx, filepath.Join(f.Dir(), r.Name(), "bird.ctl"), `show route all where proto ~ "box-*"`)
		if err != nil {
			return nil, err
		}
		return parseBIRD(out)
	}
	out, err := r.Run(ctx, "vtysh", "-d", "bgpd",
		"-c", fmt.Sprintf("show bgp ipv4 unicast %s json", lab.Prefix4), "-c", fmt.Sprintf("show bgp ipv6 unicast %s json", lab.Prefix6))
	if err != nil {
		return nil, err
	}
	return parseFRR(string(out), boxes)
}

// askBIRD asks BIRD by its socket, as birdc does: to start that twice a second at each
// router takes more than the answer, and nothing says whether what it printed is whole.
func askBIRD(ctx context.Context, socket, order string) (string, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return "", fmt.Errorf("ask BIRD: %w", err)
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline) // a socket has one
	}
	lines := bufio.NewScanner(c)
	if _, err := readBIRD(lines); err != nil { // its greeting
		return "", err
	}
	if _, err := fmt.Fprintln(c, order); err != nil {
		return "", fmt.Errorf("ask BIRD: %w", err)
	}
	return readBIRD(lines)
}

// readBIRD reads one answer: lines with a code of four digits, of which the last has a
// space behind it, and lines that begin with a space and have the code of the one before.
// Codes from 8000 on are errors.
func readBIRD(lines *bufio.Scanner) (string, error) {
	var text strings.Builder
	for lines.Scan() {
		line := lines.Text()
		if rest, ok := strings.CutPrefix(line, " "); ok {
			fmt.Fprintln(&text, rest)
			continue
		}
		if len(line) < 5 {
			return "", fmt.Errorf("BIRD says %q", line)
		}
		fmt.Fprintln(&text, line[5:])
		switch {
		case line[4] == '-':
		case line[0] >= '8':
			return "", fmt.Errorf("BIRD says %s", line)
		default:
			return text.String(), nil
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("read answer of BIRD: %w", err)
	}
	return "", errors.New("BIRD has not finished its answer")
}

// served are the prefixes of the lab.
func served() []netip.Prefix { return []netip.Prefix{lab.Prefix4, lab.Prefix6} }

func nothing() paths {
	p := paths{}
	for _, prefix := range served() {
		p[prefix] = map[string]pathState{}
	}
	return p
}

var (
	birdNet  = regexp.MustCompile(`^([0-9a-f.:]+/\d+)? +unicast \[box-(\S+) `)
	birdMark = regexp.MustCompile(`^\s+BGP\.community:.*\(65535, ?0\)`)
)

// parseBIRD reads "show route all": a network stands before its first path, and what is
// said of a path below it.
func parseBIRD(out string) (paths, error) {
	has := nothing()
	var prefix netip.Prefix
	box := ""
	for line := range strings.Lines(out) {
		if m := birdNet.FindStringSubmatch(line); m != nil {
			if m[1] != "" {
				p, err := netip.ParsePrefix(m[1])
				if err != nil {
					return nil, fmt.Errorf("read network of BIRD: %w", err)
				}
				prefix = p
			}
			if box = m[2]; has[prefix] != nil {
				has[prefix][box] = pathFull
			}
		} else if birdMark.MatchString(line) && has[prefix] != nil && box != "" {
			has[prefix][box] = pathLast
		}
	}
	return has, nil
}

// parseFRR reads one "show bgp ... json" for each prefix, in their order.
func parseFRR(out string, boxes map[string]string) (paths, error) {
	has := nothing()
	d := json.NewDecoder(strings.NewReader(out))
	for _, prefix := range served() {
		var shown struct {
			Paths []struct {
				Community struct{ String string }
				Peer      struct{ PeerID string }
			}
		}
		if err := d.Decode(&shown); err != nil {
			return nil, fmt.Errorf("read what FRR has of %s: %w: %.200q", prefix, err, out)
		}
		for _, p := range shown.Paths {
			box, ok := boxes[p.Peer.PeerID]
			if !ok {
				continue // of another router
			}
			has[prefix][box] = pathFull
			if strings.Contains(p.Community.String, "graceful-shutdown") || strings.Contains(p.Community.String, "65535:0") {
				has[prefix][box] = pathLast
			}
		}
	}
	if err := d.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("FRR says more than was asked: %.200q", out)
	}
	return has, nil
}

func TestParsePaths(t *testing.T) {
	bird := `Table master4:
198.51.100.0/24      unicast [box-a1 19:00:00.000] * (100) [AS64512i]
	via 10.1.0.2 on a1
	Type: BGP univ
	BGP.as_path: 64512
                     unicast [box-a2 19:00:01.000] (100) [AS64512i]
	via 10.1.1.2 on a2
	BGP.community: (64512,1) (65535,0)

Table master6:
2001:db8:100::/48    unicast [box-a1 19:00:00.000] * (100) [AS64512i]
	via fd00:1:0::2 on a1
`
	want := paths{lab.Prefix4: {"a1": pathFull, "a2": pathLast}, lab.Prefix6: {"a1": pathFull}}
	got, err := parseBIRD(bird)
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	none, err := parseBIRD("\n")
	if err != nil || len(none[lab.Prefix4]) != 0 {
		t.Errorf("%v, %v", none, err)
	}
	frr := `{"prefix":"198.51.100.0/24","paths":[
{"peer":{"peerId":"10.2.0.2"},"community":{"string":"64512:1 graceful-shutdown"}},{"peer":{"peerId":"10.2.1.2"}},{"peer":{"peerId":"10.255.0.1"}}]}
{}
`
	want = paths{lab.Prefix4: {"b1": pathLast, "b2": pathFull}, lab.Prefix6: {}}
	got, err = parseFRR(frr, map[string]string{"10.2.0.2": "b1", "10.2.1.2": "b2"})
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	for _, none := range []string{"", "% Unknown command\n", "{}\n", "{}\n{}\n{}\n"} {
		if _, err := parseFRR(none, nil); err == nil {
			t.Errorf("%q is an answer", none)
		}
	}
}

func TestReadBIRD(t *testing.T) {
	for _, c := range []struct {
		in, want string
		ok       bool
	}{
		{"0001 BIRD 2.0.12 ready.\n", "BIRD 2.0.12 ready.\n", true},
		{"1007-198.51.100.0/24 unicast\n \tvia 10.1.0.2\n1008-\tType: BGP\n0000 \n", "198.51.100.0/24 unicast\n\tvia 10.1.0.2\n\tType: BGP\n\n", true},
		{"8001 Network not found\n", "", false},
		{"9001 syntax error\n", "", false},
		{"1007-cut\n", "", false},
		{"", "", false},
		{"odd\n", "", false},
	} {
		got, err := readBIRD(bufio.NewScanner(strings.NewReader(c.in)))
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q is %q, %v", c.in, got, err)
		}
	}
}
