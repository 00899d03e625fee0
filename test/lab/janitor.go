package lab

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// janitorName is argument 0 of the janitor, and its only one.
const janitorName = "catchment-lab-janitor"

// hooked is set by Janitor. It is the package's one global: without it a test
// binary whose TestMain forgot the hook would, as its own janitor, run all its
// tests again, each with a janitor, and so on.
var hooked atomic.Bool

// Janitor must be the first call of the main function, or of TestMain, of a
// program that makes a lab. In the program itself it returns at once. In the
// janitor, which New starts from the same executable, it never returns: it
// waits until the program has gone and removes what a killed program left:
// processes in the lab's namespaces, its control groups and its folder. (Namespaces,
// links, mounts and BPF pins go with the processes.)
func Janitor() {
	if len(os.Args) != 1 || os.Args[0] != janitorName {
		hooked.Store(true)
		return
	}
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	if err := attend(os.NewFile(3, "lab")); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", janitorName, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// attend takes messages until the other end is gone. "dir PATH" names the
// folder, "group PATH" the control group, "ns" carries a descriptor of a namespace,
// "done" says that there is nothing left to do. The descriptors keep the namespaces' inode numbers from
// being used again.
func attend(f *os.File) error {
	conn, err := net.FileConn(f)
	if err != nil {
		return fmt.Errorf("open socket to the lab: %w", err)
	}
	f.Close()
	var dir, group string
	var inodes []uint64
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			break
		}
		switch msg := string(buf[:n]); {
		case msg == "done":
			return nil
		case msg == "ns":
			if inode, err := received(oob[:oobn]); err == nil {
				inodes = append(inodes, inode)
			}
		case len(msg) > 4 && msg[:4] == "dir ":
			dir = msg[4:]
		case strings.HasPrefix(msg, "group "):
			group = msg[len("group "):]
		}
	}
	return errors.Join(sweep(inodes), removeGroup(group), removeDir(dir))
}

func received(oob []byte) (uint64, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) == 0 {
		return 0, fmt.Errorf("take descriptor: %w", err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) == 0 {
		return 0, fmt.Errorf("take descriptor: %w", err)
	}
	return inodeOf(fds[0])
}

// removeDir removes the lab's folder and nothing else.
func removeDir(dir string) error {
	if ok, _ := filepath.Match(filepath.Join(dirParent, dirPrefix+"*"), dir); !ok {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove folder of the lab: %w", err)
	}
	return nil
}

// janitor is the lab's side of its janitor.
type janitor struct {
	cmd  *exec.Cmd
	conn *net.UnixConn
}

// startJanitor starts this very program again as the janitor.
func startJanitor() (*janitor, error) {
	if !hooked.Load() {
		return nil, errors.New("start janitor: lab.Janitor() must be the first call of main or TestMain")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket to the janitor: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "janitor"), os.NewFile(uintptr(pair[1]), "lab")
	defer ours.Close()
	defer theirs.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("open socket to the janitor: %w", err)
	}
	j := &janitor{cmd: exec.Command("/proc/self/exe"), conn: c.(*net.UnixConn)}
	j.cmd.Args = []string{janitorName}
	j.cmd.ExtraFiles = []*os.File{theirs}
	// A session of its own: neither Ctrl-C nor the terminal's end reaches it.
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := j.cmd.Start(); err != nil {
		c.Close()
		return nil, fmt.Errorf("start janitor: %w", err)
	}
	return j, nil
}

// tell sends one message, with a descriptor unless fd is negative.
func (j *janitor) tell(msg string, fd int) error {
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	if _, _, err := j.conn.WriteMsgUnix([]byte(msg), oob, nil); err != nil {
		return fmt.Errorf("tell janitor: %w", err)
	}
	return nil
}

// dismiss ends the janitor with nothing to do.
func (j *janitor) dismiss() error {
	err := j.tell("done", -1)
	j.conn.Close()
	if werr := j.cmd.Wait(); werr != nil {
		err = errors.Join(err, fmt.Errorf("wait for janitor: %w", werr))
	}
	return err
}
