// Package vm starts virtual machines for tests, as a box is started: from the
// firmware, with a disk, one network card and a serial line.
//
// It owns what makes a machine: the command line of qemu, the serial console with a
// line to wait for, the control socket, the saved state of a machine that runs, and
// the files behind its disks. It knows nothing of what the disk holds but the
// partition table. It never uses KVM: not every kernel boots on every host's, and a
// test must not depend on which it finds. The tests below test run it; a machine lives
// in a host of test/lab and ends with it.
package vm
