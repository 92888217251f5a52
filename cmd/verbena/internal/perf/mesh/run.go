// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/measure"
)

// Config configures a coordinator.
type Config struct {
	Hosts     []string // names or addresses, each with or without the port of its agent
	Port      int      // TCP port of the agents of the other hosts
	Token     Token
	Latency   Spec // without device
	Bandwidth Spec
	AtOnce    int                        // how many pairs are measured at once at most; 0 means as many as possible
	Wait      time.Duration              // how long to wait for agents at the start, and for what they do beyond the duration of a test
	Progress  func(pairs, of, round int) // called with the number of pairs that are done, if not nil; calls do not overlap
}

// Run measures every pair of hosts in both directions. Pairs with slow links
// are measured again, while fewer others are, and the better values count: a
// machine that stalls for a moment, or pairs that are in each other's way, make
// no link slow. Hosts and links that fail are part of the result. The error is
// for a list of hosts that cannot be measured, and for the end of ctx.
func Run(ctx context.Context, c Config) (*Result, error) {
	hosts, err := c.hosts()
	if err != nil {
		return nil, err
	}
	var connecting sync.WaitGroup
	for _, h := range hosts {
		connecting.Go(func() { h.connect(ctx, c.Token, c.Wait) })
	}
	connecting.Wait()
	result := newResult(hosts)
	err = c.measureAll(ctx, hosts, result, func([2]int) bool { return true })
	if err == nil {
		result.Judge()
		slow := result.slowPairs()
		err = c.measureAll(ctx, hosts, result, func(pair [2]int) bool { return slow[pair] })
	}
	for i, h := range hosts {
		if failure := h.failure(); failure != nil {
			result.Hosts[i].Error = failure.Error()
		}
		h.fail(errors.New("the measurement is over"))
	}
	if err != nil {
		return nil, err
	}
	result.Judge()
	return result, nil
}

// hosts returns the hosts of the list, not connected.
func (c Config) hosts() (all []*host, err error) {
	for _, name := range c.Hosts {
		name = strings.TrimSpace(name)
		if name == "" {
			return nil, errors.New("a name in the list of hosts is empty")
		}
		address, err := withPort(name, c.Port)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(h *host) bool { return h.address == address }) {
			return nil, fmt.Errorf("the list of hosts has %s twice", name)
		}
		all = append(all, &host{name: name, address: address})
	}
	if len(all) < 2 {
		return nil, errors.New("a mesh needs two hosts or more")
	}
	return all, nil
}

// measureAll measures the wanted pairs, one round after the other.
func (c Config) measureAll(ctx context.Context, hosts []*host, result *Result, isWanted func([2]int) bool) error {
	all, of := rounds(len(hosts)), 0
	for i := range all {
		all[i] = slices.DeleteFunc(all[i], func(pair [2]int) bool { return !isWanted(pair) })
		of += len(all[i])
	}
	var mu sync.Mutex // guards result and done
	done, running := 0, make(chan struct{}, cmp.Or(c.AtOnce, len(hosts)))
	for r, round := range all {
		var pairs sync.WaitGroup
		for _, pair := range round {
			pairs.Go(func() {
				running <- struct{}{}
				links := c.measurePair(ctx, hosts, pair, result)
				<-running
				mu.Lock()
				defer mu.Unlock()
				for _, l := range links {
					result.add(l)
				}
				if done++; c.Progress != nil {
					c.Progress(done, of, r+1)
				}
			})
		}
		pairs.Wait()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	result.sort()
	return nil
}

// measurePair measures the links between two hosts, one after the other.
func (c Config) measurePair(ctx context.Context, hosts []*host, pair [2]int, result *Result) (links []Link) {
	a, b := hosts[pair[0]], hosts[pair[1]]
	if a.failure() != nil || b.failure() != nil {
		return nil
	}
	for _, rail := range result.Rails {
		_, hasA := result.active(a, rail)
		_, hasB := result.active(b, rail)
		if !hasA || !hasB {
			continue
		}
		for _, ends := range [][2]*host{{a, b}, {b, a}} {
			l := Link{From: ends[0].name, To: ends[1].name, Rail: rail}
			latency, err := c.measureLink(ctx, result, ends, rail, c.Latency)
			if err == nil {
				l.Latency, l.Tail = latency.Typical, latency.P99
				var bandwidth measure.Row
				bandwidth, err = c.measureLink(ctx, result, ends, rail, c.Bandwidth)
				l.Bandwidth = bandwidth.Gigabits
			}
			if err != nil {
				l.Error = err.Error()
			}
			links = append(links, l)
		}
	}
	return links
}

// measureLink does a test in which the first host is the client.
func (c Config) measureLink(ctx context.Context, result *Result, ends [2]*host, rail string, spec Spec) (row measure.Row, err error) {
	from, to := ends[0], ends[1]
	limit := c.Wait + time.Duration(spec.Duration)*time.Second
	id := newID()
	at := func(h *host) *Spec {
		port, _ := result.active(h, rail)
		own := spec
		own.Device, own.Port = port.Device, port.Port
		return &own
	}
	if err := to.ask(request{ID: id, Spec: at(to), Limit: limit.Milliseconds()}); err != nil {
		return row, err
	}
	if ready, err := to.await(ctx, id, c.Wait); err != nil {
		return row, err
	} else if !ready.Ready {
		to.fail(errors.New("the agent has measured before it was ready"))
		return row, to.failure()
	}
	err = from.ask(request{ID: id, Spec: at(from), Peer: to.address, Limit: limit.Milliseconds()})
	var measured answer
	if err == nil {
		measured, err = from.await(ctx, id, limit+c.Wait)
	}
	if err != nil && !measured.Met { // the client does not come, and its end does not end the server
		_ = to.ask(request{ID: id, Stop: true})
	}
	_, theirs := to.await(ctx, id, limit+c.Wait)
	switch {
	case err != nil && theirs != nil && measured.Met:
		return row, errors.Join(err, theirs)
	case err != nil:
		return row, err
	case theirs != nil:
		return row, theirs
	case measured.Row == nil || measured.Row.Typical <= 0 && measured.Row.Gigabits <= 0:
		return row, fmt.Errorf("%s: the agent has measured nothing", from.name)
	}
	return *measured.Row, nil
}
