package xdp

import (
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// testRun is union bpf_attr of BPF_PROG_TEST_RUN. The library does not give the
// time that the kernel has measured together with a context.
type testRun struct {
	prog, retval      uint32
	sizeIn, sizeOut   uint32
	in, out           uint64
	repeat, duration  uint32
	ctxIn, ctxOut     uint32
	ctxInPtr, ctxOPtr uint64
	flags, cpu, batch uint32
	_                 uint32
}

const bpfProgTestRun = 10

// call is a packet to be fed into a program, once and again.
type call struct {
	attr  testRun
	frame []byte
	meta  *md
}

func newCall(p *ebpf.Program, frame []byte, ingress int) *call {
	c := &call{frame: frame, meta: &md{DataEnd: uint32(len(frame)), Ingress: uint32(ingress)}}
	c.attr = testRun{prog: uint32(p.FD()), sizeIn: uint32(len(frame)), repeat: 1, ctxIn: uint32(unsafe.Sizeof(md{}))}
	c.attr.in = uint64(uintptr(unsafe.Pointer(&frame[0])))
	c.attr.ctxInPtr = uint64(uintptr(unsafe.Pointer(c.meta)))
	return c
}

// run feeds the packet in. The kernel copies it first: it is as new each time,
// and a program that encapsulates is not fed its own output.
func (c *call) run(b *testing.B) {
	_, _, errno := unix.Syscall(unix.SYS_BPF, bpfProgTestRun, uintptr(unsafe.Pointer(&c.attr)), unsafe.Sizeof(c.attr))
	runtime.KeepAlive(c)
	if errno != 0 {
		b.Fatalf("run program: %v", errno)
	}
}

// cost is the time of one packet, in nanoseconds.
type cost struct {
	kernel float64 // from the program's entry to its exit: the median of some
	cpu    float64 // of this thread, with the system call and what it copies: the mean
}

func (c cost) sub(d cost) cost { return cost{c.kernel - d.kernel, c.cpu - d.cpu} }

// measure feeds in each of the packets once.
func measure(b *testing.B, calls []*call) cost {
	took := make([]uint32, len(calls))
	start := threadTime(b)
	for i, c := range calls {
		c.run(b)
		took[i] = c.attr.duration
	}
	cpu := threadTime(b) - start
	return cost{kernel: float64(median(took)), cpu: float64(cpu) / float64(len(calls))}
}

func threadTime(b *testing.B) time.Duration {
	var t unix.Timespec
	check(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return time.Duration(t.Nano())
}

func median[T uint32 | float64](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}

// benchCase is a kind of packet that is measured.
type benchCase struct {
	name string
	prog *ebpf.Program
	// floor is what it is net of; nil: it is a floor itself.
	floor *benchCase
	// frame returns the i-th packet. Where that is not always the same, each
	// is another flow.
	frame func(i int) []byte
	// xdp is the code with which the program must leave.
	xdp uint32
	// against names another case: the result is told as a ratio to it.
	against string

	next int // of frame
	net  []cost
}

// batchSize is how many packets are measured between two packets of the floor's:
// few, so that what else goes on in the machine meets both alike.
const batchSize = 64

func (c *benchCase) batch(ingress int) []*call {
	calls := make([]*call, batchSize)
	for i := range calls {
		calls[i] = newCall(c.prog, c.frame(c.next), ingress)
		c.next++
	}
	return calls
}

func (c *benchCase) checkCodes(b *testing.B, calls []*call) {
	for _, x := range calls {
		if x.attr.retval != c.xdp {
			b.Fatalf("%s: the program left with %d, want %d", c.name, x.attr.retval, c.xdp)
		}
	}
}

// rounds measures all cases in turn, each right after its floor.
func rounds(b *testing.B, n int, cases []*benchCase, ingress int) {
	// What the garbage collector does in between is none of the program's time.
	defer debug.FreeOSMemory()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for range n {
		for _, c := range cases {
			calls := c.batch(ingress)
			var floor cost
			if c.floor != nil {
				floor = measure(b, c.floor.batch(ingress))
			}
			c.net = append(c.net, measure(b, calls).sub(floor))
			c.checkCodes(b, calls)
		}
	}
}

// result is the median of all rounds.
func (c *benchCase) result() cost {
	var kernel, cpu []float64
	for _, x := range c.net {
		kernel, cpu = append(kernel, x.kernel), append(cpu, x.cpu)
	}
	return cost{median(kernel), median(cpu)}
}
