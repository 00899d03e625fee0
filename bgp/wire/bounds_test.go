package wire_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/bgp/wire"
)

// TestMemory: no message costs 64 KiB, all that is made on the way included.
func TestMemory(t *testing.T) {
	short := make([]byte, 0, 4096) // all 511 prefixes of up to 8 bits
	for bits := range 9 {
		for i := range 1 << bits {
			if short = append(short, byte(bits)); bits > 0 {
				short = append(short, byte(i<<(8-bits)))
			}
		}
	}
	s := fmt.Sprintf("%x", short)
	fill := func(unit, head, tail string, most int) string {
		return head + strings.Repeat(unit, (2*most-len(head)-len(tail))/len(unit)) + tail
	}
	room := wire.MaxLen - wire.HeaderLen - 4
	sized := func(flags, code byte, v string) string {
		return fmt.Sprintf("%02x%02x%04x%s", flags|0x10, code, len(v)/2, v)
	}
	attrs := room - 30
	unknown := func(flags byte) (out string) {
		for i := 0; len(out) < 2*room-6; i++ {
			out += fmt.Sprintf("%02x%02x00", flags, 50+i%200)
		}
		return out
	}
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), "") }
	for name, raw := range map[string][]byte{
		"4073 times /0":            update(t, "", "", strings.Repeat("00", room)),
		"4073 times /0, withdrawn": update(t, strings.Repeat("00", room), "", ""),
		"/9, announced":            update(t, "", base, strings.Repeat("09ff80", (room-28)/3)),
		"/9, withdrawn":            update(t, strings.Repeat("09ff80", room/3), "", ""),
		"all /8, four times": update(t, s, base+sized(0x80, 14, squeeze("0002 01 10"+hop6+"00"+s))+sized(0x80, 15, "000201"+s),
			s[:2*(room-28-30-3*len(short)-1)]),
		"all /8, then /9":          update(t, s+strings.Repeat("09ff80", (room-28-2*len(short)-30)/3), base+sized(0x80, 14, squeeze("0002 01 10"+hop6+"00"+s)), ""),
		"ipv6 /9":                  update(t, "", origin+path4+sized(0x80, 14, fill("09ff80", squeeze("0002 01 10"+hop6+"00"), "", attrs)), ""),
		"long path of one segment": update(t, "", origin+hop+sized(0x40, 2, strings.Repeat("02fe"+strings.Repeat("00000001", 254), 3)), net4),
		"path of short segments":   update(t, "", origin+hop+sized(0x40, 2, strings.Repeat("020100000001", attrs/6)), net4),
		"communities":              update(t, "", base+sized(0xc0, 8, strings.Repeat("00000001", attrs/4-8)), net4),
		"large communities":        update(t, "", base+sized(0xc0, 32, strings.Repeat("00000001", 3*(attrs/12-8))), net4),
		"communities and prefixes": update(t, "", base+sized(0xc0, 8, strings.Repeat("00000001", 400)), strings.Repeat("09ff80", 800)),
		"unknown attributes":       update(t, "", unknown(0xc0), ""),
		"unknown, well-known":      update(t, "", unknown(0x40), ""),
		"a long fault":             update(t, "", sized(0x40, 2, strings.Repeat("00", attrs)), ""),
	} {
		for _, four := range []bool{true, false} {
			_, err := wire.ParseUpdate(raw, four)
			if faulty := name == "a long fault" || strings.HasPrefix(name, "unknown, "); (err != nil) != faulty {
				t.Errorf("%s: %v", name, err)
			}
			if got := cost(func() { wire.ParseUpdate(raw, four) }); got >= 64<<10 {
				t.Errorf("%s (%d bytes) costs %d bytes", name, len(raw), got)
			}
		}
	}
	for name, body := range map[string]string{
		"families":     strings.Repeat("02fc"+strings.Repeat("010400020001", 42), 15),
		"unknown ones": strings.Repeat("02fc"+strings.Repeat("4900", 126), 15),
	} {
		n := len(body) / 2
		raw := message(t, wire.TypeOpen, "04 fe4d 005a 0a000001 ff ff"+fmt.Sprintf("%04x", n+15)+strings.ReplaceAll(body, "02fc", "0200fc"))
		if _, err := wire.ParseOpen(raw); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := cost(func() { wire.ParseOpen(raw) }); got >= 64<<10 {
			t.Errorf("OPEN with %s (%d bytes) costs %d bytes", name, len(raw), got)
		}
	}
	long := wire.Notify(6, 2, bytes.Repeat([]byte{0xff}, 4075))
	if got := cost(func() { wire.ParseNotification(long) }); got >= 64<<10 {
		t.Errorf("NOTIFICATION costs %d bytes", got)
	}
}

// cost is how many bytes f allocates: the least of some runs, since the runtime
// allocates too.
func cost(f func()) uint64 {
	least := ^uint64(0)
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}

// TestStrangeIsBounded: a message of bad attributes makes few words.
func TestStrangeIsBounded(t *testing.T) {
	var attrs strings.Builder
	for i := range 200 {
		fmt.Fprintf(&attrs, "40%02x00", 50+i)
	}
	u, err := wire.ParseUpdate(update(t, "", attrs.String(), net4), true)
	must(t, err)
	if len(u.Strange) != 16 || u.Strange[15] != "and more" {
		t.Errorf("%d: %q", len(u.Strange), u.Strange)
	}
}
