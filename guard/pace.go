package guard

import "time"

// What a member at rest may send and receive in a second is 5 KiB, in a fleet
// of 300 as well. What is sent without news is therefore paced by the number n
// of nodes. The budget at 300, in bytes a second, both ways, with the headers of
// IP, UDP and TCP (a pulse takes 210, 64 of them its signature; a report of few
// prefixes 600):
//
//	probes of memberlist     each 5 s, as many received               100
//	pulses                   2 * 299 * 210 each 40 s                3,140
//	exchange of states       2 * 2 * 300 * 150 each 300 s             600
//	figures that drift       2 * 299 * 700 each 820 s                 510
//
// And with news: a claim that changes is sent 12 times by each node that hears
// of it, which is 14 KB at each member; figures of load that change at all nodes
// all the time take 32 KiB/s. However much there is, memberlist sends no more
// than four packets of 1400 bytes each 200 ms: 28 KB/s.
//
// A signature takes 0.1 ms to check and 0.05 ms to make: the 8 pulses a second that
// a member of 300 sends and receives take 0.12 % of a core.
const (
	pulseWire   = 210 // bytes
	pulseBudget = 3150
	loadBudget  = 32 << 10
	driftBudget = 512
	reportWire  = 100 // what a report has around it

	// smallFleet is up to what size nothing is paced by it: all hear of all each
	// second, which takes 8 KiB/s.
	smallFleet = 20
	// pulseLeast is how often a small fleet sends pulses: many are lost before a
	// word is older than the lease of a promise.
	pulseLeast = time.Second
	// loadLeast is how often figures of load are sent at most: the proxies divide
	// the regions' capacity by them.
	loadLeast = time.Second
	loadBurst = 3
	// newsEvery and newsBurst bound what goes out at once: a claim that flaps on
	// each turn of the control loop is not worth the fleet's attention.
	newsEvery = time.Second
	newsBurst = 8
	// driftLeast is how often figures go out that have hardly changed.
	driftLeast = 30 * time.Second
	// spreadTime is how long a claim may take to be everywhere. A report that
	// replaces one in that time is spread in the same way.
	spreadTime = 5 * time.Second
)

// afford is how often each of n nodes may send so many bytes to each other one,
// when a member may send and receive budget bytes a second of that.
func afford(n, bytes, budget int) time.Duration {
	return time.Duration(2*n*bytes) * time.Second / time.Duration(budget)
}

func pulseEvery(n int) time.Duration {
	if n <= smallFleet {
		return pulseLeast
	}
	return max(pulseLeast, afford(n, pulseWire, pulseBudget))
}

// Fresh is how old, by MemberState.Age, the word of a node may be that counts among
// those of nodes that are there, in a fleet of so many nodes: the lease of a promise,
// or the time of three signs of life, which is longer beyond two dozen nodes.
func Fresh(nodes int, lease time.Duration) time.Duration { return max(lease, 3*pulseEvery(nodes)) }

func loadEvery(n, size int) time.Duration {
	if n <= smallFleet {
		return loadLeast
	}
	return max(loadLeast, afford(n, size+reportWire, loadBudget))
}

func driftEvery(n, size int) time.Duration {
	return max(driftLeast, afford(n, size+reportWire, driftBudget))
}

// pace is a bucket of time, of which there comes as much as passes. The zero value
// is full.
type pace struct{ full time.Time } // when it is, if nothing more is taken

// spend takes so much of what may be at most room, if there is as much.
func (p *pace) spend(now time.Time, cost, room time.Duration) bool {
	full := p.full
	if full.Before(now) {
		full = now
	}
	full = full.Add(cost)
	if full.Sub(now) > room {
		return false
	}
	p.full = full
	return true
}

// take takes one of burst tokens, of which one comes in each interval.
func (p *pace) take(now time.Time, every time.Duration, burst int) bool {
	return p.spend(now, every, time.Duration(burst)*every)
}

// What the checking of signatures may take of a core, for each kind of letter that is
// not of the protocol: a check takes 0.1 ms, and 3 ms more for each MiB.
const (
	checkShare = 8 // a check takes so much of the bucket for each of its own time: 12 % of a core
	checkBurst = 2 * time.Second
)

// errTooMany is why a letter is dropped that there is no time for. What was lost,
// the pulses find out.
const errTooMany = dropped("too_many")

func checkCost(raw []byte) time.Duration {
	return checkShare * (100*time.Microsecond + time.Duration(len(raw))*3*time.Nanosecond)
}
