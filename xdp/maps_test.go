package xdp

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/catchment-dev/edge/xdp/flows"
	"github.com/catchment-dev/edge/xdp/maglev"
)

// The ring of the program is the ring of package maglev.
var _ [maglev.Size]uint32 = edgeSvcTable{}.Slot

// What Go and C share must have the size that was agreed on, without holes that
// one side would not fill. A change here needs a new schema.
func TestLayouts(t *testing.T) {
	for name, c := range map[string]struct {
		value any
		size  uintptr
		want  int
	}{
		"vip_key":      {edgeVipKey{}, unsafe.Sizeof(edgeVipKey{}), 20},
		"server_key":   {edgeServerKey{}, unsafe.Sizeof(edgeServerKey{}), 16},
		"source_key":   {edgeSourceKey{}, unsafe.Sizeof(edgeSourceKey{}), 24},
		"flow_bucket":  {edgeFlowBucket{}, unsafe.Sizeof(edgeFlowBucket{}), flows.BucketSize},
		"flow_detail":  {edgeFlowDetail{}, unsafe.Sizeof(edgeFlowDetail{}), flows.DetailSize},
		"half_flow":    {edgeHalfFlow{}, unsafe.Sizeof(edgeHalfFlow{}), flows.HalfSize},
		"backend":      {edgeBackend{}, unsafe.Sizeof(edgeBackend{}), 32},
		"svc_table":    {edgeSvcTable{}, unsafe.Sizeof(edgeSvcTable{}), 112 + 4*maglev.Size + 4},
		"svc_name":     {edgeSvcName{}, unsafe.Sizeof(edgeSvcName{}), 56},
		"backend_name": {edgeBackendName{}, unsafe.Sizeof(edgeBackendName{}), 32},
		"host":         {edgeHost{}, unsafe.Sizeof(edgeHost{}), 8*maxMACs + 32},
		"vlan_key":     {edgeVlanKey{}, unsafe.Sizeof(edgeVlanKey{}), 8},
		"vlan_link":    {edgeVlanLink{}, unsafe.Sizeof(edgeVlanLink{}), 12},
		"prefix":       {edgePrefix{}, unsafe.Sizeof(edgePrefix{}), 20},
		"svc_count":    {edgeSvcCount{}, unsafe.Sizeof(edgeSvcCount{}), 96},
		"sample":       {edgeSample{}, unsafe.Sizeof(edgeSample{}), sampleHead + SnapLength},
		"verdicts":     {edgeVerdicts{}, unsafe.Sizeof(edgeVerdicts{}), 8 * 257},
	} {
		if binary.Size(c.value) != c.want || int(c.size) != c.want {
			t.Errorf("%s: %d bytes of fields in %d, want %d", name, binary.Size(c.value), c.size, c.want)
		}
	}
	spec, err := loadEdge()
	check(t, err)
	for name, want := range map[string]int{
		edgeMapSvc: serviceIDs, edgeMapSvcName: serviceIDs, edgeMapSvcCount: serviceIDs, edgeMapVip: 8 * maxServices, edgeMapServerId: backendIDs, edgeMapSynService: serviceIDs,
		edgeMapBackend: backendIDs, edgeMapBackendName: backendIDs, edgeMapBackendCount: backendIDs, edgeMapTrusted: 2 * maxTrusted,
	} {
		if got := spec.Maps[name].MaxEntries; int(got) != want {
			t.Errorf("map %s has %d entries, want %d", name, got, want)
		}
	}
}

// The verifier looks at few instructions; the limit of the kernel is a million.
func TestVerifiedInstructions(t *testing.T) {
	_, coll := bareState(t)
	info, err := coll.Programs[edgeProgEdge].Info()
	check(t, err)
	n, ok := info.VerifiedInstructions()
	t.Logf("%d instructions verified", n)
	if !ok || n > 60_000 {
		t.Errorf("%d instructions verified", n)
	}
}
