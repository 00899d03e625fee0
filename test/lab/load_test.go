package lab

import (
	"errors"
	"maps"
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
