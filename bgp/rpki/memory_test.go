package rpki

import (
	"bytes"
	"runtime"
	"testing"
	"testing/synctest"
)

// internetPDUs are n VRPs as a cache sends them.
func internetPDUs(n int) (out []byte, count int) {
	all := internet(n)
	for _, r := range all {
		out = append(out, prefixPDU(1, r)...)
	}
	return out, len(all)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMemory: VRPs in use cost 24 bytes each, and an answer as much again while
// it comes: nothing is left of it, of the cache or of the set before.
func TestMemory(t *testing.T) {
	const n = 100_000
	pdus, count := internetPDUs(n)
	empty := heap()
	synctest.Test(t, inLab(only(cacheA), func(l *lab) {
		for round := range 2 { // each by a whole new set
			c := l.accept(cacheA)
			c.expect(resetQuery(1))
			c.send(response(1, uint16(round)), pdus, endOfData(uint16(round), 1, 3600, 600, 7200))
			synctest.Wait()
			if set, _ := l.client.Current(); set.Len() != count {
				t.Fatalf("%d VRPs, want %d", set.Len(), count)
			}
			if got := int64(heap() - empty); got > int64(count)*24*11/10+1<<20 {
				t.Errorf("round %d: %d bytes for %d VRPs", round, got, count)
			}
			c.send(notification(1, 99, 1)) // another session
			c.refused(codeCorrupt, notification(1, 99, 1))
		}
		l.set(Config{})
		synctest.Wait()
		if got := int64(heap() - empty); got > 1<<20 {
			t.Errorf("%d bytes are left of a source that is gone", got)
		}
	}))
	if !bytes.HasPrefix(pdus, []byte{1, 4}) { // keeps pdus, too: it is part of empty
		t.Error("no IPv4 VRP is first")
	}
}
