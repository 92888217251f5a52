// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
)

// Finding names what is slow, fails, or is missing.
type Finding struct {
	Kind      string  `json:"kind"`                // host, port, pair or rail
	Host      string  `json:"host,omitempty"`      // of a pair, the one that sends, or the first
	Peer      string  `json:"peer,omitempty"`      // of a pair
	Rail      string  `json:"rail,omitempty"`      // of a host, empty: all
	Direction string  `json:"direction,omitempty"` // of a port or pair: out, in (not of a pair) or both
	What      string  `json:"what"`                // latency, tail, bandwidth, fails or missing
	Value     float64 `json:"value,omitempty"`     // median over the slow links
	Median    float64 `json:"median,omitempty"`    // of the rail, or of the best rail
	MAD       float64 `json:"mad_percent,omitempty"`
	Factor    float64 `json:"factor,omitempty"` // by which the value is worse than the median
	Slow      int     `json:"slow_links,omitempty"`
	Links     int     `json:"links,omitempty"` // number of links that could have been slow
	Text      string  `json:"text"`            // all of this as a sentence
}

// What a Finding says, besides the name of a Metric.
const (
	fails   = "fails"
	missing = "missing"
)

// Judge finds out what is slow, fails or is missing. It needs 3 hosts to name a
// pair, and 5 to name a host.
//
// A link is slow if it is an outlier of its rail, by the modified z-score,
// which is made of the median and the MAD, and worse than the median by
// Metric.Floor. If more than half of the links from or to a port are slow, the
// port is; if all ports of a host with several are, the host is. Only links
// that this does not explain make their pair slow. A rail is slow if its median
// is worse than that of the best rail by Metric.Floor.
func (r *Result) Judge() {
	r.Baselines, r.Findings = []Baseline{}, []Finding{}
	for _, h := range r.Hosts {
		if h.Error != "" {
			r.Findings = append(r.Findings, Finding{Kind: "host", Host: h.Name, What: fails, Text: h.Name + ": " + h.Error})
		}
	}
	r.findMissing()
	alive := map[string]bool{}
	for _, h := range r.Hosts {
		alive[h.Name] = h.Error == ""
	}
	judged := map[string][]*Link{} // by rail
	for i := range r.Links {
		if l := &r.Links[i]; alive[l.From] && alive[l.To] {
			judged[l.Rail] = append(judged[l.Rail], l)
		}
	}
	r.findOutliers(fails, judged, func(_ string, l *Link) bool { return l.Error != "" }, func(*Link) bool { return true }, describeFailure)
	for _, m := range Metrics {
		baselines := map[string]Baseline{}
		for _, rail := range r.Rails {
			if b, ok := m.baseline(rail, judged[rail]); ok {
				baselines[rail] = b
				r.Baselines = append(r.Baselines, b)
			}
		}
		r.findRails(m, baselines)
		isSlow := func(rail string, l *Link) bool {
			v, ok := m.Of(l)
			return ok && m.IsSlow(v, baselines[rail])
		}
		measured := func(l *Link) bool { _, ok := m.Of(l); return ok }
		r.findOutliers(m.Name, judged, isSlow, measured, func(f *Finding, links []*Link) { m.describe(f, links, baselines) })
	}
	r.sortFindings()
}

// sortFindings puts what fails or is missing first, and then what is slow, the
// worst first. Findings about the same host, pair or rail stay together.
func (r *Result) sortFindings() {
	worst := map[[4]string]float64{}
	subject := func(f *Finding) [4]string { return [4]string{f.Kind, min(f.Host, f.Peer), max(f.Host, f.Peer), f.Rail} }
	for i := range r.Findings {
		f := &r.Findings[i]
		factor := f.Factor
		if factor == 0 { // it fails or is missing
			factor = math.Inf(1)
		}
		worst[subject(f)] = max(worst[subject(f)], factor)
	}
	sort.SliceStable(r.Findings, func(i, j int) bool {
		a, b := subject(&r.Findings[i]), subject(&r.Findings[j])
		return cmp.Or(cmp.Compare(worst[b], worst[a]), cmp.Compare(r.Findings[j].Links, r.Findings[i].Links), cmp.Compare(r.place(r.Findings[i].Host), r.place(r.Findings[j].Host)), slices.Compare(a[:], b[:])) < 0
	})
}

// findMissing names ports that are active at other hosts.
func (r *Result) findMissing() {
	for _, rail := range r.Rails {
		for i := range r.Hosts {
			h := &r.Hosts[i]
			if _, active := r.active(&host{ports: h.Ports}, rail); active || h.Error != "" {
				continue
			}
			r.Findings = append(r.Findings, Finding{
				Kind: "port", Host: h.Name, Rail: rail, What: missing, Text: fmt.Sprintf("%s has no active %s", h.Name, rail),
			})
		}
	}
}

// findRails names the rails that are slower than the best.
func (r *Result) findRails(m *Metric, baselines map[string]Baseline) {
	var best *Baseline
	for _, rail := range r.Rails {
		if b, ok := baselines[rail]; ok && (best == nil || m.Worse(best.Median, b.Median) > 1) {
			best = &b
		}
	}
	for _, rail := range r.Rails {
		b, ok := baselines[rail]
		if !ok || m.Worse(b.Median, best.Median) <= m.Floor {
			continue
		}
		f := Finding{Kind: "rail", Rail: rail, What: m.Name, Value: b.Median, Median: best.Median, MAD: best.MAD, Links: b.Links}
		f.Factor = round(m.Worse(f.Value, f.Median))
		f.Text = fmt.Sprintf("all of %s: %s %s %s, %s that of %s, %s", rail, m.Title, Number(f.Value), m.Unit, m.times(f), best.Rail, Number(best.Median))
		r.Findings = append(r.Findings, f)
	}
}

// railPort is a host's port on a rail.
type railPort struct{ host, rail string }

// slowPort holds the links from (out) and to (in) a port that are slow, if they
// are more than half.
type slowPort struct {
	out, in []*Link
	of      int // number of measured links in the slow directions
}

// findOutliers names hosts, ports and pairs whose links are outliers, in this
// order. describe completes a finding with what its slow links have in common.
func (r *Result) findOutliers(what string, judged map[string][]*Link, isSlow func(rail string, l *Link) bool, measured func(*Link) bool, describe func(*Finding, []*Link)) {
	slow := map[*Link]bool{}
	for rail, links := range judged {
		for _, l := range links {
			slow[l] = isSlow(rail, l)
		}
	}
	ports := map[railPort]slowPort{}
	for _, rail := range r.Rails {
		for _, h := range r.Hosts {
			var p slowPort
			pick := func(isOf func(*Link) bool) (picked []*Link) {
				all := 0
				for _, l := range judged[rail] {
					if !isOf(l) || !measured(l) {
						continue
					}
					if all++; slow[l] {
						picked = append(picked, l)
					}
				}
				if 2*len(picked) <= all || all < 2 {
					return nil
				}
				p.of += all
				return picked
			}
			p.out = pick(func(l *Link) bool { return l.From == h.Name })
			p.in = pick(func(l *Link) bool { return l.To == h.Name })
			if p.of > 0 {
				ports[railPort{h.Name, rail}] = p
			}
		}
	}
	add := func(f Finding, links []*Link) {
		f.What, f.Slow = what, len(links)
		describe(&f, links)
		r.Findings = append(r.Findings, f)
	}
	for _, h := range r.Hosts {
		if all := r.slowHost(h.Name, ports); len(r.Rails) > 1 && all.of > 0 {
			add(Finding{Kind: "host", Host: h.Name, Direction: all.direction(), Links: all.of}, slices.Concat(all.out, all.in))
			continue
		}
		for _, rail := range r.Rails {
			if p, ok := ports[railPort{h.Name, rail}]; ok {
				add(Finding{Kind: "port", Host: h.Name, Rail: rail, Direction: p.direction(), Links: p.of}, slices.Concat(p.out, p.in))
			}
		}
	}
	r.findPairs(judged, func(l *Link) bool {
		return slow[l] && len(ports[railPort{l.From, l.Rail}].out) == 0 && len(ports[railPort{l.To, l.Rail}].in) == 0
	}, add)
}

// slowHost returns the slow links of all ports of a host, or nothing if one of
// the ports is not slow.
func (r *Result) slowHost(name string, ports map[railPort]slowPort) (all slowPort) {
	for _, rail := range r.Rails {
		p, ok := ports[railPort{name, rail}]
		if !ok {
			return slowPort{}
		}
		all.out, all.in, all.of = append(all.out, p.out...), append(all.in, p.in...), all.of+p.of
	}
	return all
}

// findPairs names the pairs that have slow links.
func (r *Result) findPairs(judged map[string][]*Link, isSlow func(*Link) bool, add func(Finding, []*Link)) {
	for _, rail := range r.Rails {
		for _, l := range judged[rail] {
			if !isSlow(l) {
				continue
			}
			f := Finding{Kind: "pair", Host: l.From, Peer: l.To, Rail: rail, Direction: "out", Links: 1}
			links := []*Link{l}
			back := slices.IndexFunc(judged[rail], func(b *Link) bool { return b.From == l.To && b.To == l.From })
			if back >= 0 && isSlow(judged[rail][back]) {
				if r.place(l.From) > r.place(l.To) {
					continue // the other direction has named both
				}
				f.Direction, f.Links = "both", 2
				links = append(links, judged[rail][back])
			}
			add(f, links)
		}
	}
}

func (r *Result) place(name string) int {
	return slices.IndexFunc(r.Hosts, func(h Host) bool { return h.Name == name })
}

// direction returns the direction of the slow links.
func (p slowPort) direction() string {
	switch {
	case len(p.in) == 0:
		return "out"
	case len(p.out) == 0:
		return "in"
	}
	return "both"
}

// subject returns what a finding is about.
func (f *Finding) subject() string {
	switch {
	case f.Kind == "pair" && f.Direction == "both":
		return fmt.Sprintf("%s and %s, on %s", f.Host, f.Peer, f.Rail)
	case f.Kind == "pair":
		return fmt.Sprintf("%s to %s, on %s", f.Host, f.Peer, f.Rail)
	}
	way := map[string]string{"out": "from", "in": "to", "both": "from and to"}[f.Direction]
	if f.Kind == "host" {
		return fmt.Sprintf("%s, all ports, %d of %d links %s it", f.Host, f.Slow, f.Links, way)
	}
	return fmt.Sprintf("%s, %s, %d of %d links %s it", f.Host, f.Rail, f.Slow, f.Links, way)
}

// describe completes a finding of slow links.
func (m *Metric) describe(f *Finding, links []*Link, baselines map[string]Baseline) {
	var values, medians []float64
	for _, l := range links {
		v, _ := m.Of(l)
		values, medians = append(values, v), append(medians, baselines[l.Rail].Median)
		f.MAD = max(f.MAD, baselines[l.Rail].MAD)
	}
	f.Value, f.Median = median(values), median(medians)
	f.Factor = round(m.Worse(f.Value, f.Median))
	f.Text = fmt.Sprintf("%s: %s %s %s, %s the median of %s (MAD %g %%)", f.subject(), m.Title, Number(f.Value), m.Unit, m.times(*f), Number(f.Median), f.MAD)
}

// times returns a finding's value in terms of the median.
func (m *Metric) times(f Finding) string {
	if m.Less {
		return Number(f.Value/f.Median) + " of"
	}
	return Number(f.Value/f.Median) + " times"
}

// describeFailure completes a finding of links that failed, with the most
// frequent error.
func describeFailure(f *Finding, links []*Link) {
	count := map[string]int{}
	var most string
	for _, l := range links {
		count[l.Error]++
		if count[l.Error] > count[most] {
			most = l.Error
		}
	}
	f.Text = fmt.Sprintf("%s: %s", f.subject(), strings.ReplaceAll(cmp.Or(most, "no reason"), "\n", "; "))
}

// round returns a factor with two digits behind the point.
func round(factor float64) float64 { return float64(int64(factor*100+0.5)) / 100 }
