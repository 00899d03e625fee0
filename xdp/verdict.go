package xdp

import (
	"fmt"
	"strings"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf/btf"
)

// verdict is one way out of the program: a value of enum verdict.
type verdict struct {
	value  edgeVerdict
	action string
	reason edge.Reason
}

// readVerdicts reads enum verdict from the object file, so that the names are
// written down once, in reasons.h.
func readVerdicts(types *btf.Spec) ([]verdict, error) {
	var enum *btf.Enum
	if err := types.TypeByName("verdict", &enum); err != nil {
		return nil, fmt.Errorf("read names of verdicts: %w", err)
	}
	var all []verdict
	for _, v := range enum.Values {
		if edgeVerdict(v.Value) != edgeVerdictVERDICT_NONE {
			all = append(all, newVerdict(v))
		}
	}
	return all, nil
}

func newVerdict(v btf.EnumValue) verdict {
	action, reason, _ := strings.Cut(strings.ToLower(v.Name), "_")
	return verdict{edgeVerdict(v.Value), action, edge.Reason(reason)}
}

func (f *Forwarder) verdict(value edgeVerdict) verdict {
	for _, v := range f.verdicts {
		if v.value == value {
			return v
		}
	}
	return verdict{}
}
