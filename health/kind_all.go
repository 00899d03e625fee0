package health

import "github.com/catchment-dev/edge"

// builtinKinds returns the probers of the kinds that need nothing but this box
// and its network. What they keep between runs (roots that have been read, who
// hangs in a file system, how many commands run) belongs to the caller's monitor.
func builtinKinds() map[edge.ProbeKind]Prober {
	s := &patience{}
	t := newTrust(s)
	return map[edge.ProbeKind]Prober{
		edge.ProbeUnit:     unitKind{root: "/sys/fs/cgroup"},
		edge.ProbeTLS:      tlsKind{trust: t},
		edge.ProbeHTTP2:    http2Kind{trust: t},
		edge.ProbeGRPC:     grpcKind{trust: t},
		edge.ProbeDNS:      ProberFunc(probeDNS),
		edge.ProbeICMP:     ProberFunc(probeICMP),
		edge.ProbeCommand:  newCommandKind(),
		edge.ProbeRoute:    ProberFunc(probeRoute),
		edge.ProbeFile:     fileKind{patience: s},
		edge.ProbeSocket:   ProberFunc(probeSocket),
		edge.ProbeClock:    newClockKind(),
		edge.ProbeDisk:     diskKind{patience: s},
		edge.ProbePressure: pressureKind{root: "/proc/pressure"},
		edge.ProbeExternal: externalKind{trust: t},
	}
}
