package rpki

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/catchment-dev/edge/bgp/internal/follow"
)

const (
	filePause = time.Second // between two looks at the file
	maxFile   = 1 << 29     // bytes; the VRPs of the internet are some 60 MB
	maxValue  = 1 << 20     // bytes of one value of it: what is held at a time
	// fileLife is how long a file holds from when it was made. Validators write
	// it at least every hour; one that has stopped must show.
	fileLife = 24 * time.Hour
	// fileShare is how much longer than a look at the file the pause behind it
	// is: a writer that never rests must not cost a core.
	fileShare = 9
	maxDepth  = 64 // of what is skipped, which the decoder has to remember
	// expiryPause is how often a file that stays is read again for VRPs in it
	// that have expired: in all the VRPs of the internet some always do.
	expiryPause = 10 * time.Minute
)

// fileData is what a file says.
type fileData struct {
	set  *Set
	made time.Time // zero: it does not tell
	next time.Time // when the first VRP in set expires; zero: never
}

func fileSource(path string) string { return "file " + path }

// followFile reads the file whenever it has changed, until ctx ends.
func (f *feed) followFile(ctx context.Context, path string) {
	var seen fs.FileInfo // what was read last, well or not
	var again time.Time  // to read it though it is the same; zero: never
	pause := filePause
	for ; ctx.Err() == nil; follow.Pause(ctx, pause) {
		began := time.Now()
		if !again.IsZero() && began.After(again) {
			seen = nil
		}
		data, info, err := f.readFile(ctx, path, seen)
		pause = max(filePause, fileShare*time.Since(began))
		if ctx.Err() != nil {
			return
		}
		if err == nil && data.set == nil {
			continue
		}
		seen, again = info, time.Time{}
		if err == nil && !data.next.IsZero() {
			again = later(data.next, time.Now().Add(expiryPause))
		}
		if life := time.Until(data.made.Add(fileLife)); err == nil && life <= 0 {
			err = fmt.Errorf("it was made at %s, more than %s ago: is the validator running?", data.made.UTC().Format(time.RFC3339), fileLife)
		}
		if err != nil {
			f.fail(fmt.Sprintf("VRP file %s: %v", path, err))
			continue
		}
		f.use(data.set, Status{Source: fileSource(path), VRPs: data.set.Len(), Updated: data.made, Expires: data.made.Add(fileLife)})
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// readFile returns what the file says; no Set if it is still the one that was
// seen. One that changes while it is read is an error, and is read again.
func (f *feed) readFile(ctx context.Context, path string, seen fs.FileInfo) (data fileData, info fs.FileInfo, err error) {
	if info, err = os.Stat(path); err != nil {
		return data, nil, bare(err)
	}
	if sameFile(info, seen) {
		return data, info, nil
	}
	// Before it is opened, too: that alone has effects on a FIFO and on devices.
	if err := readable(info); err != nil {
		return data, info, err
	}
	// Not blocking: it may be a FIFO by now, which would wait for a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return data, info, bare(err)
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return data, nil, bare(err)
	}
	if err := readable(info); err != nil {
		return data, info, err
	}
	now := time.Now()
	data, err = parseFile(ctx, io.LimitReader(file, maxFile), now, f.c.most)
	if after, again := file.Stat(); again != nil || !sameFile(after, info) {
		return data, nil, errors.New("it changed while it was read")
	}
	if err != nil {
		return data, info, err
	}
	if data.made.IsZero() || data.made.After(now) {
		data.made = info.ModTime()
	}
	if data.made.After(now) { // or it would never be too old
		data.made = now
	}
	return data, info, nil
}

// readable says why a file cannot be one of VRPs.
func readable(info fs.FileInfo) error {
	switch {
	case !info.Mode().IsRegular():
		return errors.New("not a regular file")
	case info.Size() > maxFile:
		return fmt.Errorf("%d bytes, at most %d", info.Size(), maxFile)
	}
	return nil
}

// sameFile says whether a file is as it was. Its time of change counts as well:
// that of writing can be set to anything, as a copy does.
func sameFile(a, b fs.FileInfo) bool {
	return b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && changed(a) == changed(b)
}

func changed(info fs.FileInfo) syscall.Timespec {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ctim
	}
	return syscall.Timespec{}
}

// fileVRP is one VRP of the file.
type fileVRP struct {
	ASN       fileASN  `json:"asn"`
	Prefix    string   `json:"prefix"`
	MaxLength *int     `json:"maxLength"` // none: that of the prefix
	Expires   *float64 `json:"expires"`   // rpki-client, in Unix seconds
}

// fileASN is "AS64512", "64512" or 64512: each of them is written by somebody.
type fileASN struct {
	n  uint32
	ok bool
}

func (a *fileASN) UnmarshalJSON(b []byte) error {
	text := string(b)
	if len(text) > 1 && text[0] == '"' {
		text = text[1 : len(text)-1]
		if len(text) > 2 && strings.EqualFold(text[:2], "AS") {
			text = text[2:]
		}
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return fmt.Errorf("%.40q is not an AS number", b)
	}
	*a = fileASN{uint32(n), true}
	return nil
}

// fileMeta is when the file was made, in the words of rpki-client and of
// Routinator.
type fileMeta struct {
	BuildTime     string `json:"buildtime"`
	GeneratedTime string `json:"generatedTime"`
}

// source is a file whose values are bounded: the decoder holds one at a time.
type source struct {
	r    io.Reader
	stop func() error // not nil: reading ends
	read int64
	used func() int64 // of what was read
}

func (s *source) Read(b []byte) (int, error) {
	if err := s.stop(); err != nil {
		return 0, err
	}
	if s.read-s.used() > maxValue {
		return 0, fmt.Errorf("a value of more than %d bytes", maxValue)
	}
	n, err := s.r.Read(b[:min(len(b), 1<<16)])
	s.read += int64(n)
	return n, err
}

// parseFile reads a whole file with at most so many VRPs, and as many other names
// and values, each of which takes as long. VRPs that have expired at now are left
// out; one that is malformed makes the whole an error with its place.
func parseFile(ctx context.Context, r io.Reader, now time.Time, most int) (data fileData, err error) {
	in := &source{r: r, stop: ctx.Err}
	dec := json.NewDecoder(in)
	in.used = dec.InputOffset
	if err := expect(dec, '{'); err != nil {
		return data, err
	}
	for skipped := 0; dec.More(); {
		name, err := dec.Token()
		if err != nil {
			return data, place(dec, err)
		}
		switch name {
		case "roas":
			if data.set != nil {
				return data, place(dec, errors.New("a second list of roas"))
			}
			if data.set, data.next, err = parseROAs(dec, now, most); err != nil {
				return data, err
			}
		case "metadata":
			var m fileMeta
			if err := dec.Decode(&m); err != nil {
				return data, place(dec, err)
			}
			data.made, _ = time.Parse(time.RFC3339, cmp.Or(m.BuildTime, m.GeneratedTime))
		default:
			n, err := skip(dec, most-skipped)
			if err != nil {
				return data, place(dec, err)
			}
			skipped += n + 1
		}
	}
	if err := expect(dec, '}'); err != nil {
		return data, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return data, place(dec, errors.New("there is something behind the end"))
	}
	if data.set == nil {
		return data, errors.New(`it has no list "roas"`)
	}
	return data, nil
}

// parseROAs reads the list of VRPs, and says when the first of them expires.
func parseROAs(dec *json.Decoder, now time.Time, most int) (set *Set, next time.Time, err error) {
	if err := expect(dec, '['); err != nil {
		return nil, next, err
	}
	var records []record
	for dec.More() {
		var v fileVRP
		if err := dec.Decode(&v); err != nil {
			return nil, next, place(dec, err)
		}
		r, err := v.record()
		if err != nil {
			return nil, next, place(dec, err)
		}
		if at := v.expiry(); !at.IsZero() {
			if !at.After(now) {
				continue
			}
			if next.IsZero() || at.Before(next) {
				next = at
			}
		}
		if len(records) == most {
			return nil, next, place(dec, fmt.Errorf("more than %d VRPs", most))
		}
		records = append(records, r)
	}
	if err := expect(dec, ']'); err != nil {
		return nil, next, err
	}
	slices.SortFunc(records, compare)
	// Several trust anchors may say the same.
	return sortedSet(slices.Clip(slices.Compact(records))), next, nil
}

// expiry is when the VRP ends; zero: it does not say, or in more years than
// matter.
func (v *fileVRP) expiry() time.Time {
	if v.Expires == nil || *v.Expires > 1<<33 {
		return time.Time{}
	}
	return time.Unix(int64(max(*v.Expires, 1)), 0)
}

func (v *fileVRP) record() (record, error) {
	if !v.ASN.ok {
		return record{}, errors.New("a VRP has no asn")
	}
	prefix, err := netip.ParsePrefix(v.Prefix)
	if err != nil {
		return record{}, fmt.Errorf("%.60q is not a prefix", v.Prefix)
	}
	vrp := VRP{Prefix: prefix, MaxLength: prefix.Bits(), ASN: v.ASN.n}
	if v.MaxLength != nil {
		vrp.MaxLength = *v.MaxLength
	}
	return toRecord(vrp)
}

// expect reads one delimiter.
func expect(dec *json.Decoder, want json.Delim) error {
	got, err := dec.Token()
	if err != nil {
		return place(dec, err)
	}
	if got != want {
		return place(dec, fmt.Errorf("expected %q", want))
	}
	return nil
}

// skip reads one value and forgets it, without holding the whole of it: a file
// has router keys and more. It returns of how many it consists, at most so many.
func skip(dec *json.Decoder, most int) (n int, err error) {
	for depth := 0; ; {
		t, err := dec.Token()
		if err != nil {
			return n, err
		}
		if n++; n > most {
			return n, errors.New("too many names and values that are no VRPs")
		}
		switch t {
		case json.Delim('['), json.Delim('{'):
			if depth++; depth > maxDepth {
				return n, fmt.Errorf("values within values, %d deep", depth)
			}
		case json.Delim(']'), json.Delim('}'):
			depth--
		}
		if depth == 0 {
			return n, nil
		}
	}
}

// place says where in the file an error is.
func place(dec *json.Decoder, err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // of the text, not of our reading it
	}
	if text := err.Error(); len(text) > maxText { // the decoder quotes a number however long it is
		err = errors.New(printable([]byte(text)))
	}
	return fmt.Errorf("byte %d: %w", dec.InputOffset(), err)
}
