package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

// shape is which sites a cut keeps from hearing each other.
type shape string

const (
	// split: two sides, neither of which hears the other.
	split shape = "split"
	// oneWay: the first side hears nothing of the second, which hears it.
	oneWay shape = "one-way"
	// bridge: as split, with a third side between them that hears both and that both
	// hear.
	bridge shape = "bridge"
)

// cut is a partition that is made by packet filters in the boxes.
type cut struct {
	shape shape
	sides [][]string
	// at is when it is made, from the beginning of the round.
	at time.Duration
	// healFirst says that it is healed while the dependency is still broken.
	healFirst bool
}

// drawCut draws one of sites: 1 and 8, 2 and 7, 3 and 6 or 4 and 5, or three sides of
// any size.
func drawCut(rnd *rand.Rand, sites []string) *cut {
	of := slices.Clone(sites)
	rnd.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	c := &cut{
		shape:     []shape{split, split, oneWay, bridge}[rnd.IntN(4)],
		at:        time.Duration(rnd.Int64N(int64(breakAt + 3*time.Second))),
		healFirst: rnd.IntN(2) == 0,
	}
	n := 1 + rnd.IntN(len(of)/2)
	c.sides = [][]string{of[:n], of[n:]}
	if c.shape == bridge {
		m := 1 + rnd.IntN(len(of)-n-1)
		c.sides = [][]string{of[:n], of[n : n+m], of[n+m:]}
	}
	for _, side := range c.sides {
		slices.Sort(side)
	}
	return c
}

// deaf says whether a site hears nothing of another one.
func (c *cut) deaf(site, of string) bool {
	a, b := c.side(site), c.side(of)
	return a == 0 && b == 1 || a == 1 && b == 0 && c.shape != oneWay
}

func (c *cut) side(site string) int {
	return slices.IndexFunc(c.sides, func(s []string) bool { return slices.Contains(s, site) })
}

// halves says whether each site can talk to its own side and to nobody else: what it
// takes to talk is to hear each other.
func (c *cut) halves() bool { return c.shape != bridge }

func (c *cut) String() string {
	var sizes, sides []string
	for _, s := range c.sides {
		sizes, sides = append(sizes, fmt.Sprint(len(s))), append(sides, strings.Join(s, ""))
	}
	return fmt.Sprintf("%s %s (%s)", c.shape, strings.Join(sizes, "/"), strings.Join(sides, "|"))
}

// make has every box ignore whom it is not to hear.
func (r *rig) make(c *cut) error {
	return r.all(func(s site) error {
		var ignore []*lab.Box
		for _, other := range r.sites {
			if c.deaf(s.name, other.name) {
				ignore = append(ignore, other.box)
			}
		}
		return s.box.Ignore(ignore...)
	})
}

// heal ends every cut.
func (r *rig) heal() error { return r.all(func(s site) error { return s.box.Ignore() }) }
