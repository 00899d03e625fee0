package rpki

import (
	"fmt"
	"slices"
)

// changeError is a change that does not fit what is there. RFC 8210 section
// 5.11 makes both kinds fatal: the cache and we disagree about the data.
type changeError struct {
	code   uint16
	record record
}

func (e *changeError) Error() string {
	if e.code == codeUnknownRecord {
		return fmt.Sprintf("withdrawal of a VRP that was not announced: %s", e.record.vrp())
	}
	return fmt.Sprintf("announcement of a VRP that is there already: %s", e.record.vrp())
}

// merge returns old with changes applied in their order, all or none. It sorts
// changes. Old is not touched: it is sorted, and others may read it.
func merge(old, changes []record) ([]record, error) {
	slices.SortStableFunc(changes, compare) // the changes of one VRP keep their order
	out := make([]record, 0, len(old)+len(changes))
	for len(changes) > 0 {
		r := changes[0]
		r.withdraw = false
		i, there := slices.BinarySearchFunc(old, r, compare)
		out = append(out, old[:i]...)
		old = old[i:]
		if there {
			old = old[1:]
		}
		for ; len(changes) > 0 && compare(changes[0], r) == 0; changes = changes[1:] {
			switch withdraw := changes[0].withdraw; {
			case withdraw && !there:
				return nil, &changeError{codeUnknownRecord, changes[0]}
			case !withdraw && there:
				return nil, &changeError{codeDuplicate, r}
			default:
				there = !withdraw
			}
		}
		if there {
			out = append(out, r)
		}
	}
	return append(out, old...), nil
}
