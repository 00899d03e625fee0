package wire_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/catchment-dev/edge/bgp/wire"
)

func TestNotification(t *testing.T) {
	text := func(s string) string { return fmt.Sprintf("%02x%x", len(s), s) }
	for _, c := range []struct{ body, want string }{
		{"0602", "Cease/Administrative Shutdown"},
		{"0602 00", "Cease/Administrative Shutdown"},
		{"0602" + text("maintenance"), `Cease/Administrative Shutdown: "maintenance"`},
		{"0604" + text("wartung für Österreich"), `Cease/Administrative Reset: "wartung für Österreich"`},
		{"0604" + text(strings.Repeat("x", 255)), `Cease/Administrative Reset: "` + strings.Repeat("x", 255) + `"`},
		{"0602" + text(" \x1b[2J\r\nroot# \u202e\u2028\x00\u009b "), `Cease/Administrative Shutdown: "[2J  root#"`},
		{"0602" + text("bad\xff\xc0\xafutf\ufffd"), `Cease/Administrative Shutdown: "bad???utf?"`},
		{"0602 05 6162", "Cease/Administrative Shutdown"}, // longer than the data
		{"0602 01 6162", "Cease/Administrative Shutdown"}, // shorter
		{"0603" + text("not a text here"), "Cease/Peer De-configured"},
		{"0609", "Cease/Hard Reset"},
		{"0609 06", "Cease/Hard Reset"},
		{"0609 0602" + text("bye"), `Cease/Hard Reset (Cease/Administrative Shutdown): "bye"`},
		{"0609 0400", "Cease/Hard Reset (Hold Timer Expired)"},
		{"0609 0609 0602" + text("deep"), "Cease/Hard Reset"},
		{"0601 0001010000000a", "Cease/Maximum Number of Prefixes Reached"},
		{"0605", "Cease/Connection Rejected"},
		{"0606", "Cease/Other Configuration Change"},
		{"0607", "Cease/Connection Collision Resolution"},
		{"0608", "Cease/Out of Resources"},
		{"060a", "Cease/BFD Down"},
		{"060b", "Cease/subcode 11"},
		{"0101", "Message Header Error/Connection Not Synchronized"},
		{"0102 0012", "Message Header Error/Bad Message Length"},
		{"0103", "Message Header Error/Bad Message Type"},
		{"0200", "OPEN Message Error"},
		{"0201 0004", "OPEN Message Error/Unsupported Version Number"},
		{"0202", "OPEN Message Error/Bad Peer AS"},
		{"0203", "OPEN Message Error/Bad BGP Identifier"},
		{"0204", "OPEN Message Error/Unsupported Optional Parameter"},
		{"0206", "OPEN Message Error/Unacceptable Hold Time"},
		{"0207", "OPEN Message Error/Unsupported Capability"},
		{"0208", "OPEN Message Error/subcode 8"},
		{"020b", "OPEN Message Error/Role Mismatch"},
		{"0301", "UPDATE Message Error/Malformed Attribute List"},
		{"0302", "UPDATE Message Error/Unrecognized Well-known Attribute"},
		{"0303", "UPDATE Message Error/Missing Well-known Attribute"},
		{"0304", "UPDATE Message Error/Attribute Flags Error"},
		{"0305", "UPDATE Message Error/Attribute Length Error"},
		{"0306", "UPDATE Message Error/Invalid ORIGIN Attribute"},
		{"0308", "UPDATE Message Error/Invalid NEXT_HOP Attribute"},
		{"0309", "UPDATE Message Error/Optional Attribute Error"},
		{"030a", "UPDATE Message Error/Invalid Network Field"},
		{"030b", "UPDATE Message Error/Malformed AS_PATH"},
		{"0400", "Hold Timer Expired"},
		{"0500", "Finite State Machine Error"},
		{"0501", "Finite State Machine Error/Receive Unexpected Message in OpenSent State"},
		{"0502", "Finite State Machine Error/Receive Unexpected Message in OpenConfirm State"},
		{"0503", "Finite State Machine Error/Receive Unexpected Message in Established State"},
		{"0701", "ROUTE-REFRESH Message Error/Invalid Message Length"},
		{"0800", "Send Hold Timer Expired"},
		{"0900", "error code 9"},
		{"ffff", "error code 255/subcode 255"},
	} {
		n, err := wire.ParseNotification(message(t, wire.TypeNotification, c.body))
		must(t, err)
		if n.String() != c.want {
			t.Errorf("%s: %s, want %s", c.body, n, c.want)
		}
		checkNotification(t, n)
	}
}

func checkNotification(t testing.TB, n wire.Notification) {
	t.Helper()
	if len(n.Text) > 255 || !utf8.ValidString(n.Text) || strings.ContainsFunc(n.Text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Fatalf("text %q", n.Text)
	}
	again, err := wire.ParseNotification(wire.Notify(n.Code, n.Subcode, n.Data))
	if err != nil || again.String() != n.String() {
		t.Fatalf("%s became %s, %v", n, again, err)
	}
}

// TestNotifyBounds: too much data does not make a message that is too long.
func TestNotifyBounds(t *testing.T) {
	b := wire.Notify(3, 9, make([]byte, 10000))
	if len(b) != wire.MaxLen {
		t.Errorf("%d bytes", len(b))
	}
	n, err := wire.ParseNotification(b)
	must(t, err)
	if len(n.Data) != 4075 {
		t.Errorf("%d bytes of data", len(n.Data))
	}
	_, err = wire.ParseNotification(wire.Keepalive())
	var bad *wire.Error
	if err == nil || errors.As(err, &bad) {
		t.Errorf("%v (%T): nothing may be sent in answer to a NOTIFICATION", err, err)
	}
}
