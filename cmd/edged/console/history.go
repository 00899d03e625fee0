package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/catchment-dev/edge"
)

// maxPast is how many events one answer has at most, which is how many a
// health.Ring keeps.
const maxPast = 4096

// serveHistory answers GET /v1/history?since=N&last=M with the events after the
// first N of all, but only the last M of them. Both may be left out.
func (f *feed) serveHistory(w http.ResponseWriter, r *http.Request) {
	since, err := number(r, "since", 0)
	if err != nil {
		problem(w, http.StatusBadRequest, err.Error())
		return
	}
	last, err := number(r, "last", maxPast)
	if err != nil {
		problem(w, http.StatusBadRequest, err.Error())
		return
	}
	list, next := f.past.Since(since)
	if most := min(last, maxPast); uint64(len(list)) > most {
		list = list[uint64(len(list))-most:]
	}
	if list == nil {
		list = []edge.Event{} // not null: a reader need not know the difference
	}
	b, err := json.Marshal(edge.Events{Events: list, Next: next})
	if err != nil {
		problem(w, http.StatusInternalServerError, fmt.Sprintf("encode history: %v", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(b, '\n')) // the reader may be gone
}

// number reads a parameter of the request that is a number.
func number(r *http.Request, name string, otherwise uint64) (uint64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is not a number of 0 or more", name)
	}
	return n, nil
}
