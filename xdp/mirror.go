package xdp

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// mirror is a map of the kernel and what we know to be in it. Only we write it,
// so each call brings it closer to what is wanted, also after a failed one.
type mirror[K comparable, V comparable] struct {
	m    *ebpf.Map
	have map[K]V
}

// newMirror reads a whole map.
func newMirror[K comparable, V comparable](coll *ebpf.Collection, name string) (mirror[K, V], error) {
	mr := mirror[K, V]{m: coll.Maps[name], have: make(map[K]V)}
	var (
		zero   V
		cursor ebpf.MapBatchCursor
		keys   = make([]K, 1024)
		values = make([]V, 1024)
		array  = mr.m.Type() == ebpf.Array
	)
	for {
		n, err := mr.m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return mr, fmt.Errorf("read map %s: %w", name, err)
		}
		for i := range n {
			if !array || values[i] != zero { // an array has every key
				mr.have[keys[i]] = values[i]
			}
		}
		if err != nil {
			return mr, nil
		}
	}
}

// add writes what is wanted and not there yet. It removes nothing.
func (mr *mirror[K, V]) add(want map[K]V) error {
	for k, v := range want {
		if old, ok := mr.have[k]; ok && old == v {
			continue
		}
		if err := mr.m.Put(k, v); err != nil {
			return fmt.Errorf("write element of map %s: %w", mr.m, err)
		}
		mr.have[k] = v
	}
	return nil
}

// prune removes what is there and not wanted.
func (mr *mirror[K, V]) prune(want map[K]V) error {
	for k := range mr.have {
		if _, ok := want[k]; ok {
			continue
		}
		if err := mr.m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete element of map %s: %w", mr.m, err)
		}
		delete(mr.have, k)
	}
	return nil
}
