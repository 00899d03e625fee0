// Command bench turns what go test -bench prints into out/bench/TARGET.json: a
// list of {name, value, unit, against, ratio}. It reads standard input, passes
// it on, and computes no figure of its own but one: the ratio to what a figure
// is compared with, measured in the same run. That is the sub-benchmark named
// "peer" of the same group; or, if a metric's unit ends in :NAME, its value is
// that of NAME, for the metric with the same unit without it. make bench and
// make bench-xdp run it.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/catchment-dev/edge/test/figure"
)

func main() {
	if len(os.Args) != 2 && len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: bench OUT.json [PREFIX] < output of go test -bench\n"+
			"PREFIX is cut off from the names of the figures, as in xdp.BenchmarkXDP/")
		os.Exit(2)
	}
	if err := run(os.Args[1], strings.Join(os.Args[2:], ""), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(path, prefix string, in io.Reader, out io.Writer) error {
	figures, err := parse(io.TeeReader(in, out))
	if err != nil {
		return err
	}
	if len(figures) == 0 {
		return fmt.Errorf("write %s: no benchmark has printed a figure", path)
	}
	compare(figures)
	for i := range figures {
		figures[i].Name = strings.TrimPrefix(figures[i].Name, prefix)
		figures[i].Against = strings.TrimPrefix(figures[i].Against, prefix)
	}
	return figure.Write(path, figures)
}

// line is a result: name, CPUs, count, then pairs of value and unit.
var line = regexp.MustCompile(`^(Benchmark\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

func parse(in io.Reader) ([]figure.Figure, error) {
	var out []figure.Figure
	pkg := ""
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if p, ok := strings.CutPrefix(lines.Text(), "pkg: "); ok {
			pkg = strings.TrimPrefix(strings.TrimPrefix(p, "github.com/catchment-dev/edge"), "/")
		}
		m := line.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		found, err := metrics(pkg+"."+m[1], strings.Fields(m[2]))
		if err != nil {
			return nil, fmt.Errorf("read %q: %w", lines.Text(), err)
		}
		out = append(out, found...)
	}
	return out, lines.Err()
}

// metrics reads pairs of value and unit.
func metrics(name string, fields []string) ([]figure.Figure, error) {
	var own, others []figure.Figure
	for i := 0; i+1 < len(fields); i += 2 {
		v, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return nil, err
		}
		unit, against, isOther := strings.Cut(fields[i+1], ":")
		f := figure.Figure{Name: name, Value: v, Unit: unit, Against: against}
		if isOther {
			others = append(others, f)
		} else {
			own = append(own, f)
		}
	}
	for _, o := range others {
		for i := range own {
			if own[i].Unit == o.Unit && o.Value != 0 {
				own[i].Against, own[i].Ratio = o.Against, own[i].Value/o.Value
			}
		}
	}
	return own, nil
}

// compare fills in the ratios to sub-benchmarks named peer.
func compare(figures []figure.Figure) {
	type key struct{ group, unit string }
	peers := map[key]figure.Figure{}
	for _, f := range figures {
		if group, ok := strings.CutSuffix(f.Name, "/peer"); ok {
			peers[key{group, f.Unit}] = f
		}
	}
	for i, f := range figures {
		slash := strings.LastIndex(f.Name, "/")
		if slash < 0 {
			continue
		}
		if p, ok := peers[key{f.Name[:slash], f.Unit}]; ok && p.Name != f.Name && p.Value != 0 {
			figures[i].Against, figures[i].Ratio = p.Name, f.Value/p.Value
		}
	}
}
