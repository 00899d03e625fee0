package nic

import "fmt"

// What follows is read in the drivers, Linux 5.15 to 6.18: what each of them
// refuses when a program is attached in native mode, or does badly from then on.

// mtuLimit judges the MTU: our program takes frames of one buffer only, and with
// native XDP a driver keeps a frame, room in front of it and its administration
// in one page of memory, or half a page.
func (j *judge) mtuLimit() {
	if j.PageSize != 4096 {
		return // other limits
	}
	limit, known := driverMTU(j.Driver)
	name, mtu := j.Name, j.MTU
	if j.Driver == "veth" {
		// What its peer may send is what counts (veth_xdp_set). A peer in another
		// namespace is taken to be alike.
		known = j.Peer != ""
		if known {
			name, mtu = j.Peer, j.PeerMTU
		}
	}
	if mtu <= limit {
		return
	}
	whose := "its MTU"
	if name != j.Name {
		whose = fmt.Sprintf("the MTU of its peer %s", name)
	}
	s := Setting{Interface: name, MTU: limit}
	remedy := fmt.Sprintf("%s, %s", s.command(""), orGeneric)
	if known {
		j.fatal(fmt.Sprintf("%s, %d, is too large for native XDP: driver %s takes %d", whose, mtu, j.Driver, limit), remedy)
		j.with(s)
		return
	}
	j.warn(fmt.Sprintf("%s, %d, may be too large for native XDP", whose, mtu), remedy)
}

// driverMTU is the largest MTU that a driver takes with a program that does not
// take fragments, and whether it is known for sure.
func driverMTU(driver string) (limit int, known bool) {
	switch driver {
	case "veth", "virtio_net", "mana":
		return 3506, true // 4096 - 256 in front - 320 behind - 14 of Ethernet
	case "bnxt_en":
		return 3502, true // and a VLAN tag
	case "mlx4_en", "mlx5_core", "ena":
		return 3498, true // and the FCS, or another tag
	case "i40e", "ice", "ixgbe", "ixgbevf", "igb":
		return 3046, true // 3072 - 14 of Ethernet - 4 of FCS - 2 tags of 4
	case "igc":
		return 1500, true
	case "gve":
		return 2032, false // 2048 - 14 - 2; some machines have buffers of 4096
	}
	return 3498, false // what a page holds
}

// channels judges the number of queues. Native XDP sends from queues of its
// own, one a CPU or one a receive queue, which not every device has to spare.
func (j *judge) channels() {
	switch j.Driver {
	case "virtio_net":
		j.virtioChannels()
	case "ixgbe":
		j.ixgbeChannels()
	case "ena":
		j.enaChannels()
	case "gve":
		j.gveChannels()
	case "bnxt_en":
		j.bnxtChannels()
	case "i40e", "mlx5_core":
		j.redirectChannels()
	}
}

// virtioChannels: virtnet_xdp_set wants a queue for each possible CPU beside
// those in use. Without them it sends from those, under a lock.
func (j *judge) virtioChannels() {
	c, cpus := j.Channels, j.PossibleCPUs
	own := c.Combined
	if j.Attached && own > cpus {
		own -= cpus // what it shows now includes those of the program
	}
	if c.MaxCombined == 0 || own+cpus <= c.MaxCombined {
		return
	}
	remedy := fmt.Sprintf("give the virtual machine %d queues or more (QEMU: queues=%d of the netdev, and vectors=%d)", cpus+1, cpus+1, 2*cpus+4)
	var s Setting
	if c.MaxCombined > cpus {
		s, remedy = j.combined(c.MaxCombined - cpus)
	}
	j.warn(fmt.Sprintf("of its %d queues %d are in use, and %d CPUs need one each to send from: they will share them under a lock, which is slower",
		c.MaxCombined, own, cpus), remedy)
	j.with(s)
}

// ixgbeChannels: ixgbe_xdp_setup adds a queue for each possible CPU, 64 at most.
// Katran's issue 20 saw the device hang when all queues were in use already.
func (j *judge) ixgbeChannels() {
	c, cpus := j.Channels, j.PossibleCPUs
	switch {
	case cpus > 128:
		j.fatal(fmt.Sprintf("driver ixgbe runs native XDP with at most 128 CPUs, and this kernel has room for %d", cpus),
			"start the kernel with nr_cpus=128, "+orGeneric)
	case cpus > 64:
		j.warn(fmt.Sprintf("driver ixgbe has 64 queues for native XDP, and this kernel has room for %d CPUs: they will share them under a lock, which is slower", cpus),
			"start the kernel with nr_cpus=64")
	case c.MaxCombined > cpus && c.Combined+cpus > c.MaxCombined:
		s, command := j.combined(c.MaxCombined - cpus)
		j.warn(fmt.Sprintf("of its %d queues %d are in use, and native XDP adds one for each of %d CPUs: its sending is known to hang then",
			c.MaxCombined, c.Combined, cpus), command)
		j.with(s)
	}
}

// enaChannels: ena_xdp_allowed wants as many queues free as are in use.
func (j *judge) enaChannels() {
	c := j.Channels
	switch {
	case c.MaxCombined == 0 || 2*c.Combined <= c.MaxCombined:
	case c.MaxCombined == 1:
		j.fatal("it has a single queue, and native XDP needs one of its own", "use a larger instance type, "+orGeneric)
	default:
		s, command := j.combined(c.MaxCombined / 2)
		j.fatal(fmt.Sprintf("%d of its %d queues are in use, and native XDP needs as many again", c.Combined, c.MaxCombined), command)
		j.with(s)
	}
}

// gveChannels: verify_xdp_configuration wants as many receive as send queues,
// and as many of the latter free.
func (j *judge) gveChannels() {
	c := j.Channels
	if c.MaxTX == 0 || c.RX == c.TX && 2*c.TX <= c.MaxTX {
		return
	}
	what := fmt.Sprintf("it has %d receive and %d send queues in use, of %d: native XDP needs the same number of both, half of all at most",
		c.RX, c.TX, c.MaxTX)
	n := min(c.MaxTX/2, c.MaxRX)
	if n == 0 {
		j.fatal(what, "use a larger machine type, "+orGeneric)
		return
	}
	s, command := j.queues(Queues{RX: n, TX: n, Combined: Leave})
	j.fatal(what, command)
	j.with(s)
}

// bnxtChannels: bnxt_xdp_set wants queues that receive and send.
func (j *judge) bnxtChannels() {
	c := j.Channels
	if c.Combined > 0 || c.RX == 0 {
		return
	}
	s, command := j.queues(Queues{Combined: max(1, min(c.RX, c.MaxCombined))})
	j.fatal("its queues either receive or send, and native XDP needs some that do both", command)
	j.with(s)
}

// redirectChannels: i40e_xdp_xmit and mlx5e_xdp_xmit send what another uplink
// redirects to them from the queue of the number of the CPU, and drop it if there
// is none.
func (j *judge) redirectChannels() {
	c, cpus := j.Channels, j.OnlineCPUs
	if c.Combined == 0 || c.Combined >= cpus {
		return
	}
	s, remedy := j.combined(cpus)
	if c.MaxCombined < cpus {
		s = Setting{}
		remedy = fmt.Sprintf("keep the interrupts of the other uplinks on CPUs 0 to %d (smp_affinity_list in /proc/irq), or let this be the only uplink",
			c.Combined-1)
	}
	j.warn(fmt.Sprintf("it has %d queues for %d CPUs, and driver %s drops what another CPU redirects to it from another uplink", c.Combined, cpus, j.Driver), remedy)
	j.with(s)
}
