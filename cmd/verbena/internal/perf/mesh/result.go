// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"slices"
	"sort"
)

// Result is what the coordinator found out.
type Result struct {
	Hosts     []Host     `json:"hosts"`
	Rails     []string   `json:"rails"` // such as "mlx5_0 port 1"
	Links     []Link     `json:"links"`
	Baselines []Baseline `json:"baselines"`
	Findings  []Finding  `json:"findings"`

	index  map[[3]string]int // place of each link, by From, To and Rail
	single bool              // whether each host has one port, so that there is one rail, whatever its devices are called
}

// Host is a host of the list.
type Host struct {
	Name  string `json:"name"`
	Ports []Port `json:"ports"`
	Error string `json:"error,omitempty"` // why its agent does not answer
}

// Link is what was measured from one host to another on a rail.
type Link struct {
	From      string  `json:"from"` // the client, which sends
	To        string  `json:"to"`
	Rail      string  `json:"rail"`
	Latency   float64 `json:"latency_us,omitempty"` // median of one way
	Tail      float64 `json:"p99_us,omitempty"`     // 99th percentile of one way
	Bandwidth float64 `json:"bandwidth_gb_s,omitempty"`
	Error     string  `json:"error,omitempty"`
}

// newResult returns the result for hosts, without links.
func newResult(hosts []*host) *Result {
	r := &Result{Rails: []string{}, Links: []Link{}, Baselines: []Baseline{}, Findings: []Finding{}, index: map[[3]string]int{}}
	most := 0
	var names []string
	for _, h := range hosts {
		r.Hosts = append(r.Hosts, Host{Name: h.name, Ports: append([]Port{}, h.ports...)})
		most = max(most, len(h.ports))
		for _, p := range h.ports {
			if name := p.String(); p.Active && !slices.Contains(names, name) { // a port that is down at every host is not in use
				names = append(names, name)
			}
		}
	}
	if r.single = most == 1 && len(names) > 1; r.single {
		names = []string{"the only port"}
	}
	r.Rails = append(r.Rails, names...)
	return r
}

// active returns a host's port on a rail, and whether it is active.
func (r *Result) active(h *host, rail string) (Port, bool) {
	port, ok := h.port(rail, r.single)
	return port, ok && port.Active
}

// Baseline returns what is normal for a metric on a rail. ok is false if the
// metric was not measured there.
func (r *Result) Baseline(rail string, m *Metric) (b Baseline, ok bool) {
	for _, b := range r.Baselines {
		if b.Rail == rail && b.Metric == m.Name {
			return b, true
		}
	}
	return b, false
}

// Failed reports whether a host or a link could not be measured.
func (r *Result) Failed() bool {
	return slices.ContainsFunc(r.Hosts, func(h Host) bool { return h.Error != "" }) ||
		slices.ContainsFunc(r.Links, func(l Link) bool { return l.Error != "" }) || len(r.Links) == 0
}

// add adds a link. If it was measured before, the better values count, and so
// does an error.
func (r *Result) add(l Link) {
	key := [3]string{l.From, l.To, l.Rail}
	i, again := r.index[key]
	switch {
	case !again:
		r.index[key] = len(r.Links)
		r.Links = append(r.Links, l)
	case r.Links[i].Error == "" && l.Error == "":
		before := r.Links[i]
		l.Latency, l.Tail, l.Bandwidth = min(l.Latency, before.Latency), min(l.Tail, before.Tail), max(l.Bandwidth, before.Bandwidth)
		r.Links[i] = l
	case r.Links[i].Error == "":
		r.Links[i].Error = l.Error
	}
}

// slowPairs returns the pairs of hosts that have a slow link, by the places of
// the hosts.
func (r *Result) slowPairs() map[[2]int]bool {
	slow := map[[2]int]bool{}
	for i := range r.Links {
		l := &r.Links[i]
		for _, m := range Metrics {
			b, _ := r.Baseline(l.Rail, m)
			if v, ok := m.Of(l); ok && m.IsSlow(v, b) {
				a, b := r.place(l.From), r.place(l.To)
				slow[[2]int{min(a, b), max(a, b)}] = true
			}
		}
	}
	return slow
}

// sort puts the links into the order of the rails and hosts.
func (r *Result) sort() {
	place := map[string]int{}
	for i, h := range r.Hosts {
		place[h.Name] = i
	}
	sort.Slice(r.Links, func(i, j int) bool {
		a, b := r.Links[i], r.Links[j]
		return cmp.Or(
			cmp.Compare(slices.Index(r.Rails, a.Rail), slices.Index(r.Rails, b.Rail)),
			cmp.Compare(place[a.From], place[b.From]), cmp.Compare(place[a.To], place[b.To])) < 0
	})
	for i, l := range r.Links {
		r.index[[3]string{l.From, l.To, l.Rail}] = i
	}
}
