// Package pcapng writes packets with the way they left the forwarder, in the
// form that Wireshark and tcpdump read (draft-ietf-opsawg-pcapng).
//
// It owns the form alone. It never captures, and never looks into a packet.
// edged uses it for edgectl capture.
package pcapng

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/catchment-dev/edge"
)

// ContentType is the media type of what a Writer writes.
const ContentType = "application/x-pcapng"

// Packet is an Ethernet frame as it left.
type Packet struct {
	Time time.Time
	// Interface is the name of the one where it came in.
	Interface string
	// Length is that of the whole frame, in bytes. Less than there is of Data
	// counts as what there is.
	Length int
	// Action is pass, tx, redirect or drop; Reason why.
	Action string
	Reason edge.Reason
	// Data is the beginning of the frame.
	Data []byte
}

// Options describe a capture.
type Options struct {
	// Application is what wrote the file; Comment says what was captured.
	Application, Comment string
	// Interfaces are those that are known beforehand, at least one; others are
	// added when a packet comes from them.
	Interfaces []string
}

// Writer writes one capture. It is for one goroutine.
type Writer struct {
	ng         *pcapgo.NgWriter
	interfaces map[string]int
}

// NewWriter writes the head of a capture to w. That alone is a whole file.
func NewWriter(w io.Writer, o Options) (*Writer, error) {
	if len(o.Interfaces) == 0 {
		return nil, errors.New("write head of capture: no interface is named")
	}
	out := &Writer{interfaces: make(map[string]int)}
	var err error
	out.ng, err = pcapgo.NewNgWriterInterface(w, describe(o.Interfaces[0]), pcapgo.NgWriterOptions{
		SectionInfo: pcapgo.NgSectionInfo{Application: o.Application, Comment: o.Comment, OS: "Linux"},
	})
	if err != nil {
		return nil, fmt.Errorf("write head of capture: %w", err)
	}
	out.interfaces[o.Interfaces[0]] = 0
	for _, name := range o.Interfaces[1:] {
		if _, err := out.of(name); err != nil {
			return nil, err
		}
	}
	if err := out.ng.Flush(); err != nil {
		return nil, fmt.Errorf("write head of capture: %w", err)
	}
	return out, nil
}

func describe(name string) pcapgo.NgInterface {
	return pcapgo.NgInterface{
		Name: name, Description: "packets that came in on " + name + ", as they left the forwarder",
		LinkType: layers.LinkTypeEthernet,
	}
}

// of returns the number of an interface in the file.
func (w *Writer) of(name string) (int, error) {
	if id, ok := w.interfaces[name]; ok {
		return id, nil
	}
	id, err := w.ng.AddInterface(describe(name))
	if err != nil {
		return 0, fmt.Errorf("write interface %s: %w", name, err)
	}
	w.interfaces[name] = id
	return id, nil
}

// Write writes p; nothing of it is kept back. Its comment is "action/reason",
// and its verdict the one of XDP, by which Wireshark can filter.
func (w *Writer) Write(p Packet) error {
	id, err := w.of(p.Interface)
	if err != nil {
		return err
	}
	info := gopacket.CaptureInfo{
		Timestamp: p.Time, InterfaceIndex: id,
		CaptureLength: len(p.Data), Length: max(p.Length, len(p.Data)),
	}
	o := pcapgo.NgPacketOptions{Comments: []string{p.Action + "/" + string(p.Reason)}}
	if code, ok := xdpAction(p.Action); ok {
		o.Verdicts = []pcapgo.NgEpbVerdict{{
			Type: pcapgo.NgEpbVerdictTypeLinuxeBPFXDP, Data: binary.LittleEndian.AppendUint64(nil, code),
		}}
	}
	if err := w.ng.WritePacketWithOptions(info, p.Data, o); err != nil {
		return fmt.Errorf("write packet: %w", err)
	}
	if err := w.ng.Flush(); err != nil {
		return fmt.Errorf("write packet: %w", err)
	}
	return nil
}

// xdpAction is the number of enum xdp_action (linux/bpf.h) for an action.
func xdpAction(action string) (code uint64, ok bool) {
	switch action {
	case "drop":
		return 1, true
	case "pass":
		return 2, true
	case "tx":
		return 3, true
	case "redirect":
		return 4, true
	}
	return 0, false
}
