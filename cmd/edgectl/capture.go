package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// captureFlags are what is asked for.
type captureFlags struct {
	out, only, service string
	oneIn, packets     int
	duration           time.Duration
}

func (o *options) captureCommand() *cobra.Command {
	var f captureFlags
	c := &cobra.Command{
		Use: "capture", Short: "Write packets with the way they left the forwarder, for Wireshark", Args: cobra.NoArgs,
		Long: "Have the forwarder hand out packets as they leave, and write them as pcapng: each with its verdict as\n" +
			"a comment, such as drop/bad_length, and as XDP's. It keeps the first 256 bytes of a packet. It ends by itself.\n" +
			"Only one capture runs at a time. On a busy box take --one-in: each packet that is handed out costs time.",
		Example: "  edgectl capture --only drop --out drops.pcapng\n  edgectl capture --one-in 100 --service web --out web.pcapng\n  edgectl capture --duration 10m | wireshark -k -i -",
		RunE: func(c *cobra.Command, _ []string) error {
			if f.duration < time.Second || f.duration%time.Second != 0 {
				return fmt.Errorf("--duration %s is not a whole number of seconds", f.duration)
			}
			if f.out == "-" && o.terminal {
				return errors.New("a capture is not for a terminal: give --out FILE, or send it to another command")
			}
			if o.output == "json" {
				return errors.New("a capture has its own form: -o json is not for it")
			}
			return o.capture(c, f)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.out, "out", "-", "`file` to write; - is the standard output")
	fl.IntVar(&f.oneIn, "one-in", 1, "one packet of this `number`, by chance")
	fl.StringVar(&f.only, "only", "", "only packets that left in one of these `ways`: pass,tx,redirect,drop")
	fl.StringVar(&f.service, "service", "", "only packets of a `service`")
	fl.DurationVar(&f.duration, "duration", 10*time.Second, "end after this `time`, up to 1h")
	fl.IntVar(&f.packets, "packets", 1000, "end after this `number` of packets, up to 1000000")
	return c
}

func (o *options) capture(c *cobra.Command, f captureFlags) error {
	ctx, cancel := context.WithTimeout(c.Context(), o.timeout+f.duration)
	defer cancel()
	client := socket.NewClient(o.socket)
	defer client.Close()
	resp, err := client.Open(ctx, "GET", "/v1/capture?"+f.query(o.user).Encode(), nil)
	if err != nil {
		return problem{o.remedy(ctx, "GET", err)}
	}
	defer resp.Body.Close()
	// Not before: what edged refuses leaves the file as it was.
	err = o.save(f.out, resp.Body)
	var local *os.PathError
	switch {
	case errors.As(err, &local):
		return problem{fmt.Errorf("write capture: %w", err)}
	case c.Context().Err() != nil:
		return o.captured(f.out, "what was captured until then") // whoever interrupts it has seen enough
	case err != nil:
		return problem{o.remedy(ctx, "GET", err)}
	}
	n, _ := strconv.Atoi(resp.Trailer.Get("Edge-Packets"))
	if err := o.captured(f.out, count(n, "packet")); err != nil {
		return err
	}
	if why := resp.Trailer.Get("Edge-Error"); why != "" {
		return problem{fmt.Errorf("edged broke the capture off: %s; its log may say more", why)}
	}
	return nil
}

func (f captureFlags) query(by string) url.Values {
	q := url.Values{
		"rate": {strconv.Itoa(f.oneIn)}, "packets": {strconv.Itoa(f.packets)},
		"seconds": {strconv.Itoa(int(f.duration / time.Second))}, "by": {by},
	}
	for key, v := range map[string]string{"actions": f.only, "service": f.service} {
		if v != "" {
			q.Set(key, v)
		}
	}
	return q
}

// save writes the capture to a file that is nobody else's to read, or to the
// standard output.
func (o *options) save(path string, r io.Reader) error {
	if path == "-" {
		_, err := io.Copy(o.stdout, r)
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// captured says what is where, beside the capture itself.
func (o *options) captured(path, what string) error {
	if path == "-" {
		fmt.Fprintf(o.stderr, "%s written\n", what)
		return nil
	}
	return o.write(fmt.Sprintf("%s written to %s\n", what, path))
}
