package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// daemonSpec is what a daemon is started with.
type daemonSpec struct {
	host       *Host
	name, path string
	args       []string
	// pidFile, if not empty, is believed like systemd's PIDFile=: a daemon that
	// reloads by starting its successor names it there.
	pidFile string
	log     string
	restart time.Duration
}

// Daemon is a supervised process of a box. Its methods may be called by several
// goroutines at once.
type Daemon struct {
	spec daemonSpec
	stop chan struct{}
	once sync.Once
	done chan struct{}

	mu      sync.Mutex
	pid     int           // of the process that the supervisor waits for; 0: none
	restart time.Duration // negative: off
	wake    chan struct{} // size 1: the policy has changed
	starts  int
	exits   []Exit
}

// Exit is an end of a daemon's process.
type Exit struct {
	At  time.Time
	PID int
	// Err is nil for exit code 0, and for a process that was not our child.
	// With PID 0 it says why the daemon could not be started again.
	Err error
}

// startDaemon starts the process and its supervisor.
func startDaemon(s daemonSpec) (*Daemon, error) {
	d := &Daemon{spec: s, stop: make(chan struct{}), done: make(chan struct{}), restart: s.restart, wake: make(chan struct{}, 1)}
	p, err := d.launch()
	if err != nil {
		return nil, err
	}
	go d.supervise(p)
	return d, nil
}

func (d *Daemon) launch() (*Process, error) {
	log, err := os.OpenFile(d.spec.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", d.spec.name, err)
	}
	defer log.Close()
	p, err := d.spec.host.start(log, d.spec.path, d.spec.args...)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pid = p.PID()
	d.starts++
	return p, nil
}

// supervise waits for the process, and for each that replaced it, and starts
// the daemon again as the policy says.
func (d *Daemon) supervise(p *Process) {
	defer close(d.done)
	for {
		select {
		case <-p.Done():
		case <-d.stop:
			return // the sweep ends the process
		}
		d.ended(p.PID(), p.Err())
		for pid := d.successor(p.PID()); pid != 0; pid = d.successor(pid) {
			if !d.follow(pid) {
				return
			}
		}
		var err error
		if p, err = d.again(); err != nil {
			if !errors.Is(err, errGone) {
				d.ended(0, err) // cannot be started any more: the exits say why
			}
			return
		}
	}
}

func (d *Daemon) ended(pid int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pid = 0
	d.exits = append(d.exits, Exit{At: time.Now(), PID: pid, Err: err})
}

// successor is the process of the pid file, if it is another one that lives in
// the box; else 0.
func (d *Daemon) successor(of int) int {
	pid := d.named()
	if pid == of {
		return 0
	}
	return pid
}

// named is the live process of the pid file; 0 if there is none.
func (d *Daemon) named() int {
	if d.spec.pidFile == "" {
		return 0
	}
	b, err := os.ReadFile(d.spec.pidFile)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || !livesIn(pid, []uint64{d.spec.host.inode}) {
		return 0
	}
	return pid
}

// follow waits for a process that is not our child; false if the supervisor
// has to stop.
func (d *Daemon) follow(pid int) bool {
	d.mu.Lock()
	d.pid = pid
	d.mu.Unlock()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for livesIn(pid, []uint64{d.spec.host.inode}) {
		select {
		case <-d.stop:
			return false
		case <-tick.C:
		}
	}
	d.ended(pid, nil)
	return true
}

// again starts the daemon after the pause that the policy wants.
func (d *Daemon) again() (*Process, error) {
	ended := time.Now()
	for {
		d.mu.Lock()
		pause := d.restart
		d.mu.Unlock()
		var due <-chan time.Time
		if pause >= 0 {
			due = time.After(time.Until(ended.Add(pause)))
		}
		select {
		case <-d.stop:
			return nil, errGone
		case <-d.wake: // look at the policy again
		case <-due:
			return d.launch()
		}
	}
}

// Name is the daemon's command.
func (d *Daemon) Name() string { return d.spec.name }

// LogPath is the file with the output of all its processes.
func (d *Daemon) LogPath() string { return d.spec.log }

// PID is the main process: that of the pid file, if the daemon has one that
// lives, else the one that was started. 0: none.
func (d *Daemon) PID() int {
	if pid := d.named(); pid != 0 {
		return pid
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pid
}

// Starts counts how often the supervisor has started it.
func (d *Daemon) Starts() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.starts
}

// Exits are the ends that the supervisor has seen, oldest first.
func (d *Daemon) Exits() []Exit {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Exit(nil), d.exits...)
}

// RestartAfter sets the policy: how long after its end the daemon is started
// again. It holds for a daemon that is down already.
func (d *Daemon) RestartAfter(pause time.Duration) { d.setRestart(max(0, pause)) }

// RestartNever leaves the daemon down when it ends.
func (d *Daemon) RestartNever() { d.setRestart(-1) }

func (d *Daemon) setRestart(pause time.Duration) {
	d.mu.Lock()
	d.restart = pause
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Signal sends a signal to the main process.
func (d *Daemon) Signal(s syscall.Signal) error {
	pid := d.PID()
	if pid == 0 {
		return fmt.Errorf("signal %s of %s: it is not running", d.spec.name, d.spec.host.name)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("signal %s of %s: %w", d.spec.name, d.spec.host.name, err)
	}
	defer unix.Close(fd)
	if !livesIn(pid, []uint64{d.spec.host.inode}) {
		return fmt.Errorf("signal %s of %s: it has just ended", d.spec.name, d.spec.host.name)
	}
	if err := unix.PidfdSendSignal(fd, s, nil, 0); err != nil {
		return fmt.Errorf("signal %s of %s: %w", d.spec.name, d.spec.host.name, err)
	}
	return nil
}

// Kill sends SIGKILL to the main process and waits until it is gone. The
// policy says whether it comes back.
func (d *Daemon) Kill(ctx context.Context) error {
	pid := d.PID()
	if err := d.Signal(unix.SIGKILL); err != nil {
		return err
	}
	return Until(ctx, fmt.Sprintf("process %d of %s has ended", pid, d.spec.name), func() error {
		if livesIn(pid, []uint64{d.spec.host.inode}) {
			return errors.New("it lives")
		}
		return nil
	})
}

// close ends the supervision; the sweep of the host ends the process.
func (d *Daemon) close() {
	d.once.Do(func() { close(d.stop) })
	<-d.done
}
