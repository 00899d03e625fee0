package bfd

import (
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

// The thread may have slice of a CPU in every period, before all others. It
// takes some 3 % for 256 sessions.
const slice, period = time.Millisecond, 4 * time.Millisecond

// raisePriority puts the calling thread before all others of the box; restore
// takes that back. Both need CAP_SYS_NICE.
//
// The policy is SCHED_DEADLINE. The nice priority is of little use: it counts
// only within a control group or a session (sched_autogroup), and every service
// is in one of its own. SCHED_FIFO has no limit: a flood of packets would take
// a whole CPU from everybody, and Go's runtime may spin on what another thread
// holds, which then never runs.
//
// Measured on two CPUs at a load of 7 to 22, 50 ms times 3, three runs of 20 s
// each: no false detection and at most 97 ms late with DEADLINE; 0, 2 and 2
// false detections and at most 129 ms late with nice -20. What remains is Go's
// scheduler: to go on, the thread needs one of GOMAXPROCS places, and a thread
// of this process that the kernel does not run may hold it.
func (l *loop) raisePriority() (restore func()) {
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // the system call gives 20 - nice, of the thread
	if err != nil {
		l.say(slog.LevelWarn, "bfd keeps the ordinary priority", "err", err)
		return func() {}
	}
	back := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: int32(20 - raw)}
	restore = func() { _ = unix.SchedSetAttr(0, &back, 0) } // lowering needs no leave
	deadline := unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_DEADLINE, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
		Runtime: uint64(slice), Deadline: uint64(period), Period: uint64(period),
	}, 0)
	if deadline == nil {
		return restore
	}
	// The kernel refuses it within a cpuset, and when no time is left to promise.
	nice := unix.Setpriority(unix.PRIO_PROCESS, 0, -20)
	l.say(slog.LevelWarn, "bfd has no deadline scheduling: under load it may be late; give the process CAP_SYS_NICE and all CPUs",
		"err", deadline, "nice_err", nice)
	return restore
}
