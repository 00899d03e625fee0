package wire

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Error codes and those of their subcodes that are used here (RFC 4271 section
// 4.5, RFC 5492, RFC 7313).
const (
	codeHeader  = 1
	codeOpen    = 2
	codeUpdate  = 3
	codeHold    = 4
	codeFSM     = 5
	codeCease   = 6
	codeRefresh = 7
	codeSend    = 8

	headerSync, headerLength, headerType = 1, 2, 3

	openUnspecific, openVersion, openPeerAS, openID = 0, 1, 2, 3
	openParameter, openHold, openCapability         = 4, 6, 7

	updateList, updateUnknown, updateMissing  = 1, 2, 3
	updateFlags, updateLength, updateOrigin   = 4, 5, 6
	updateNextHop, updateOptional             = 8, 9
	updateNetwork, updateASPath               = 10, 11
	ceaseShutdown, ceaseReset, ceaseHardReset = 2, 4, 9
	notificationLen                           = HeaderLen + 2
	maxNotificationData                       = MaxLen - notificationLen
)

// Error is a fault of a message that ends the session, with what the
// NOTIFICATION must carry (RFC 4271 section 6). A fault of a NOTIFICATION is
// never answered with another one (section 6.4).
type Error struct {
	Code, Subcode uint8
	// Data is what the RFC wants sent along: often nothing, at most 4075 bytes.
	Data []byte
	// Text says what is wrong, for people. It is not sent, and holds no bytes
	// of the peer, only numbers.
	Text string
}

// Error returns "UPDATE Message Error/Malformed AS_PATH: text".
func (e *Error) Error() string { return fault(e.Code, e.Subcode) + ": " + e.Text }

// Notification returns the message that tells the peer.
func (e *Error) Notification() []byte { return Notify(e.Code, e.Subcode, e.Data) }

// Notify returns a NOTIFICATION (RFC 4271 section 4.5). Data beyond 4075 bytes,
// which is what a message has room for, is cut off.
func Notify(code, subcode uint8, data []byte) []byte {
	return marshal(TypeNotification, []byte{code, subcode}, data[:min(len(data), maxNotificationData)])
}

// Notification is why the other end closed the session.
type Notification struct {
	Code, Subcode uint8
	// Data is a copy of what came along, at most 4075 bytes. Not for people.
	Data []byte
	// Text is the shutdown communication (RFC 9003), also within a hard reset
	// (RFC 8538): valid UTF-8 without any control or formatting character, at
	// most 255 bytes; mostly empty. It is the other operator's word: show it, do
	// not act on it.
	Text string
}

// ParseNotification reads a NOTIFICATION. A text whose length is not that of
// the data is left out: it is no reason to lose the code. The error is not an
// *Error: nothing is sent after a NOTIFICATION.
func ParseNotification(raw []byte) (Notification, error) {
	b, bad := body(raw, TypeNotification)
	if bad != nil {
		return Notification{}, fmt.Errorf("read notification: %s", bad.Text)
	}
	n := Notification{Code: b[0], Subcode: b[1]}
	if len(b) > 2 {
		n.Data = append([]byte(nil), b[2:]...)
	}
	code, subcode, data := n.innermost()
	if code == codeCease && (subcode == ceaseShutdown || subcode == ceaseReset) {
		n.Text = shutdownText(data)
	}
	return n, nil
}

// innermost returns what a hard reset wraps (RFC 8538 section 3.1), and n
// itself otherwise.
func (n Notification) innermost() (code, subcode uint8, data []byte) {
	if n.Code == codeCease && n.Subcode == ceaseHardReset && len(n.Data) >= 2 {
		return n.Data[0], n.Data[1], n.Data[2:]
	}
	return n.Code, n.Subcode, n.Data
}

// shutdownText reads a length and as many bytes of UTF-8 (RFC 9003 section 2).
func shutdownText(data []byte) string {
	if len(data) == 0 || int(data[0]) != len(data)-1 {
		return ""
	}
	// The text goes to terminals, logs and the console: escape sequences, line
	// breaks and characters that turn the direction of writing must not. One
	// byte takes the place of each, so that nothing grows.
	clean := strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError:
			return '?'
		case !unicode.IsPrint(r):
			return ' '
		}
		return r
	}, string(data[1:]))
	return strings.TrimSpace(clean)
}

// String returns the names of IANA's registry and the text, as in
// `Cease/Administrative Shutdown: "maintenance"`; for a hard reset also what it
// wraps.
func (n Notification) String() string {
	s := fault(n.Code, n.Subcode)
	if code, subcode, _ := n.innermost(); code != n.Code || subcode != n.Subcode {
		s += " (" + fault(code, subcode) + ")"
	}
	if n.Text != "" {
		s += fmt.Sprintf(": %q", n.Text)
	}
	return s
}

// fault returns "Cease/Hard Reset", or the numbers of what has no name.
// Subcode 0 is unspecific and is not shown.
func fault(code, subcode uint8) string {
	name, subs := names(code)
	switch {
	case subcode == 0:
		return name
	case int(subcode) <= len(subs) && subs[subcode-1] != "":
		return name + "/" + subs[subcode-1]
	}
	return fmt.Sprintf("%s/subcode %d", name, subcode)
}

// names returns the name of an error code and those of its subcodes from 1 on,
// empty where there is none (IANA, BGP Error Codes and Subcodes).
func names(code uint8) (name string, subcodes []string) {
	switch code {
	case codeHeader:
		return "Message Header Error", []string{"Connection Not Synchronized", "Bad Message Length", "Bad Message Type"}
	case codeOpen:
		return "OPEN Message Error", []string{"Unsupported Version Number", "Bad Peer AS", "Bad BGP Identifier",
			"Unsupported Optional Parameter", "Authentication Failure", "Unacceptable Hold Time", "Unsupported Capability", "", "", "", "Role Mismatch"}
	case codeUpdate:
		return "UPDATE Message Error", []string{"Malformed Attribute List", "Unrecognized Well-known Attribute",
			"Missing Well-known Attribute", "Attribute Flags Error", "Attribute Length Error", "Invalid ORIGIN Attribute",
			"AS Routing Loop", "Invalid NEXT_HOP Attribute", "Optional Attribute Error", "Invalid Network Field", "Malformed AS_PATH"}
	case codeHold:
		return "Hold Timer Expired", nil
	case codeFSM: // RFC 6608
		return "Finite State Machine Error", []string{"Receive Unexpected Message in OpenSent State",
			"Receive Unexpected Message in OpenConfirm State", "Receive Unexpected Message in Established State"}
	case codeCease: // RFC 4486, RFC 8538, RFC 9384
		return "Cease", []string{"Maximum Number of Prefixes Reached", "Administrative Shutdown", "Peer De-configured",
			"Administrative Reset", "Connection Rejected", "Other Configuration Change", "Connection Collision Resolution",
			"Out of Resources", "Hard Reset", "BFD Down"}
	case codeRefresh: // RFC 7313
		return "ROUTE-REFRESH Message Error", []string{"Invalid Message Length"}
	case codeSend: // RFC 9687
		return "Send Hold Timer Expired", nil
	}
	return fmt.Sprintf("error code %d", code), nil
}
