package main

import (
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/guard"
	"github.com/catchment-dev/edge/health"
)

// wish is what the guard is told of a decision.
func (l *loop) wish(d edge.Decision) guard.Wish {
	h := l.conditions[d.Prefix].Health
	return guard.Wish{
		Want: d.Rung.WantsOut(), Unfit: !d.Rung.WantsOut() && d.Severity > 0, Severity: d.Severity, Reason: d.Wish(),
		Well: d.Rung == edge.Announced && (h == edge.Healthy || h == edge.HealthFull),
	}
}

// view is what the health is judged with, beside the probes.
func (in inputs) view(now time.Time) health.View {
	return health.View{Now: now, Others: in.sharedBy, Suspect: in.suspect}
}
