package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// flowList is the answer of GET /v1/flows.
type flowList struct {
	Flows []edge.FlowEntry `json:"flows"`
	Total int              `json:"total"`
	Shown int              `json:"shown"`
}

func (o *options) flowsCommand() *cobra.Command {
	var service, backend, source string
	var limit int
	c := &cobra.Command{
		Use: "flows", Short: "List the flows that the forwarder remembers, and their backends", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			q := url.Values{"limit": {strconv.Itoa(limit)}}
			for key, v := range map[string]string{"service": service, "backend": backend, "source": source} {
				if v != "" {
					q.Set(key, v)
				}
			}
			list, err := o.fetchFlows(c, "/v1/flows?"+q.Encode())
			if err != nil {
				return err
			}
			if o.output == "json" {
				return o.json(list)
			}
			return o.write(flowsText(o.colour, list))
		},
	}
	f := c.Flags()
	f.StringVar(&service, "service", "", "only those of a `service`")
	f.StringVar(&backend, "backend", "", "only those of a `backend`")
	f.StringVar(&source, "source", "", "only those from a `prefix` or an address")
	f.IntVar(&limit, "limit", 1000, "list at most this `number`, up to 100000")
	return c
}

// fetchFlows decodes the answer as it comes: it may be larger than what call
// takes.
func (o *options) fetchFlows(c *cobra.Command, path string) (list flowList, err error) {
	ctx, cancel := context.WithTimeout(c.Context(), o.timeout)
	defer cancel()
	client := socket.NewClient(o.socket)
	defer client.Close()
	resp, err := client.Open(ctx, "GET", path, nil)
	if err != nil {
		return list, problem{o.remedy(ctx, "GET", err)}
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return list, problem{o.remedy(ctx, "GET", fmt.Errorf("decode answer of edged: %w", err))}
	}
	return list, nil
}

func flowsText(colour bool, list flowList) string {
	p := page{colour: colour}
	var rows [][]cell
	for _, f := range list.Flows {
		state := "established"
		if f.Half {
			state = "one packet"
		}
		rows = append(rows, []cell{
			{string(f.Service), plain}, {known(string(f.Backend)), plain}, {f.Protocol.String(), plain},
			{end(f.Src, f.Protocol), plain}, {end(f.Dst, f.Protocol), plain}, {state, plain}, {span(f.Left), plain},
		})
	}
	head := count(list.Total, "flow")
	if list.Total == 0 {
		head = "no flows"
	}
	if list.Shown < list.Total {
		head += fmt.Sprintf(", %d of them listed: --limit lists more", list.Shown)
	}
	p.say(plain, head)
	if len(rows) > 0 {
		p.table([]string{"SERVICE", "BACKEND", "PROTOCOL", "SOURCE", "DESTINATION", "STATE", "FORGOTTEN IN"}, rows)
	}
	return p.b.String()
}

// end is one end of a flow: what the flow table leaves out is any.
func end(a netip.AddrPort, p edge.Protocol) string {
	switch {
	case !a.Addr().IsValid():
		return "any"
	case a.Port() == 0 && p != edge.TCP && p != edge.UDP:
		return a.Addr().String()
	case a.Port() == 0:
		return a.Addr().String() + ", any port"
	}
	return a.String()
}
