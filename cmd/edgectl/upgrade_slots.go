package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge/image/boot"
	"github.com/catchment-dev/edge/image/slot"
)

func (o *options) slotsCommand() *cobra.Command { return o.slotsCommandOn(thisBox()) }

func (o *options) slotsCommandOn(b *box) *cobra.Command {
	return &cobra.Command{
		Use: "slots", Short: "Show the slots of the appliance: what runs, is staged, is refused, and why",
		Long: "Show the version in each slot and how it stands, what the next reboot boots, how far the last upgrade is,\n" +
			"and which versions are refused, and why. It changes nothing, and is to be run as root.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v, err := b.slots()
			if err != nil {
				return asProblem(err)
			}
			if o.output == "json" {
				return o.json(v)
			}
			return o.write(v.text(o.env))
		},
	}
}

// slotsView is the answer of -o json.
type slotsView struct {
	Slots []slotView `json:"slots"`
	// Next is the version that the next reboot boots; "" if there is none.
	Next    string         `json:"next"`
	Upgrade *slot.Upgrade  `json:"upgrade"`
	Refused []slot.Refused `json:"refused"`
}

// slotView is one slot.
type slotView struct {
	Slot slot.Slot `json:"slot"`
	// Version is "" if the slot has none that can be booted.
	Version string `json:"version"`
	Runs    bool   `json:"runs"`
	// State is "good", "staged", "trial", "failed", "aside" (set aside by an order) or
	// "empty"; Tries are the boots that are left to a version that is staged or on trial.
	State string `json:"state"`
	Tries int    `json:"tries,omitempty"`
}

// slots gathers it.
func (b *box) slots() (v slotsView, err error) {
	here, err := b.booted()
	if err != nil {
		return v, err
	}
	all, err := b.ukis()
	if err != nil {
		return v, err
	}
	if v.Upgrade, err = b.state().Upgrade(); err != nil {
		return v, err
	}
	if v.Refused, err = b.refused(here); err != nil {
		return v, err
	}
	if v.Refused == nil {
		v.Refused = []slot.Refused{}
	}
	if next, ok := slot.Next(all); ok {
		v.Next = next.Version
	}
	for _, s := range []slot.Slot{slot.A, slot.B} {
		one := slotView{Slot: s, Runs: s == here.slot, State: "empty"}
		if one.Runs {
			one.Version = here.version
		} else if other, ok := slot.Next(slot.Others(all, here.version)); ok {
			one.Version = other.Version
		}
		k, ok, err := slot.Of(all, one.Version)
		if err != nil {
			return v, err
		}
		if ok {
			one.State, one.Tries = slotState(k, one.Runs, v.Upgrade)
		}
		v.Slots = append(v.Slots, one)
	}
	return v, nil
}

// slotState is how a UKI stands.
func slotState(k slot.UKI, runs bool, last *slot.Upgrade) (state string, tries int) {
	switch {
	case !k.Counted:
		return "good", 0
	case k.SetAside():
		return "aside", 0
	case runs:
		return "trial", k.Left
	case k.Spent():
		return "failed", 0
	case k.Done == 0 && last.OnTrial() && last.Version == k.Version:
		return "staged", k.Left
	}
	return "trial", k.Left
}

// words are what a state means, for people.
func (s slotView) words() (string, tone) {
	switch s.State {
	case "good":
		return "good", plain
	case "staged":
		return "staged, with " + count(s.Tries, "boot") + " to become good", warn
	case "trial":
		return "under trial, " + count(s.Tries, "boot") + " left", warn
	case "failed":
		return "has failed: booted only if nothing else is left", bad
	case "aside":
		return "set aside: booted only if nothing else is left", faint
	}
	if s.Runs {
		return "its UKI is not on the EFI partition", bad
	}
	return "none that can be booted", faint
}

func (v slotsView) text(e env) string {
	p := &page{colour: e.colour}
	var rows [][]cell
	for _, s := range v.Slots {
		words, t := s.words()
		here := ""
		if s.Runs {
			here = "runs"
		}
		rows = append(rows, []cell{{string(s.Slot), plain}, {s.Version, plain}, {here, plain}, {words, t}})
	}
	p.table([]string{"SLOT", "VERSION", "", "STATE"}, rows)
	var here booted
	for _, s := range v.Slots {
		if s.Runs {
			here.version = s.Version
		}
	}
	switch {
	case v.Next == "":
		p.section(bad, "the next reboot finds nothing to boot")
	case v.Next == here.version:
		p.section(plain, "the next reboot boots "+v.Next+" again")
	case mayCancel(here, v.Upgrade, v.Next) == nil:
		p.section(warn, "the next reboot boots "+v.Next+"; edgectl upgrade --cancel takes it back")
	default:
		p.section(warn, "the next reboot boots "+v.Next)
	}
	if u := v.Upgrade; u != nil {
		p.say(plain, fmt.Sprintf("the last upgrade: from %s to %s, %s at %s, by %s", known(u.From), known(u.Version), u.Stage, u.Changed.UTC().Format("2006-01-02 15:04:05 UTC"), known(u.By)))
	}
	for _, r := range v.Refused {
		p.say(warn, fmt.Sprintf("refused: version %s, %s", r.Version, boot.Cause(r)))
	}
	if len(v.Refused) > 0 {
		p.say(faint, "edgectl upgrade --forgive VERSION has one taken again")
	}
	return p.b.String()
}
