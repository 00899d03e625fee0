package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"syscall"
	"testing"
	"time"
)

func TestSamples(t *testing.T) {
	at := time.Unix(1000, 0)
	bad := errors.New("bad")
	s := Samples{
		{At: at, Answer: Answer{Region: "east", Site: "a", Box: "a1"}},
		{At: at.Add(time.Second), Answer: Answer{Region: "west", Site: "a", Box: "a2"}},
		{At: at.Add(2 * time.Second), Err: bad},
		{At: at.Add(3 * time.Second), Answer: Answer{Region: "west", Site: "b", Box: "b1"}},
	}
	if got := s.Failed(); len(got) != 1 || got[0].Err != bad {
		t.Errorf("failed: %v", got)
	}
	if got := s.Between(at.Add(time.Second), at.Add(3*time.Second)); len(got) != 2 || got[1].Err != bad {
		t.Errorf("between: %v", got)
	}
	for what, c := range map[string]struct{ got, want map[string]int }{
		"regions": {s.Regions(), map[string]int{"east": 1, "west": 2}},
		"sites":   {s.Sites(), map[string]int{"a": 2, "b": 1}},
		"boxes":   {s.Boxes(), map[string]int{"a1": 1, "a2": 1, "b1": 1}},
	} {
		if !maps.Equal(c.got, c.want) {
			t.Errorf("%s: got %v, want %v", what, c.got, c.want)
		}
	}
	if len(s) != 4 || s[2].Err != bad {
		t.Error("the samples were changed")
	}
}

func TestLoadIsBounded(t *testing.T) {
	for _, l := range []Load{{Rate: 0, For: time.Second}, {Rate: 1001, For: time.Second}, {Rate: 1}, {Rate: 1, For: time.Hour}} {
		if _, err := (&Client{}).Send(t.Context(), l); err == nil {
			t.Errorf("%+v is taken", l)
		}
	}
}

// TestAgain: what breaks is asked once more, and only that.
func TestAgain(t *testing.T) {
	reset := fmt.Errorf("get: %w", syscall.ECONNRESET)
	for _, c := range []struct {
		what          string
		answers       []error
		again         bool
		asked         int
		broke, failed bool
	}{
		{"well", []error{nil}, true, 1, false, false},
		{"broken", []error{reset, nil}, true, 2, true, false},
		{"broken twice", []error{reset, reset}, true, 2, true, true},
		{"broken, and not to be asked again", []error{reset}, false, 1, false, true},
		{"cut", []error{io.ErrUnexpectedEOF, nil}, true, 2, true, false},
		{"late", []error{context.DeadlineExceeded}, true, 1, false, true},
		{"another answer", []error{errors.New("503")}, true, 1, false, true},
	} {
		asked := 0
		s := sample(t.Context(), Load{Again: c.again}, func(context.Context) (Answer, error) {
			asked++
			return Answer{}, c.answers[asked-1]
		})
		if asked != c.asked || (s.Broke != nil) != c.broke || (s.Err != nil) != c.failed {
			t.Errorf("%s: asked %d times, broke %v, failed %v", c.what, asked, s.Broke, s.Err)
		}
	}
}
