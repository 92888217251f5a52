// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/verbena-go/verbena/ibverbs/link"
)

// Topology describes a fabric: its nodes, their ports, and how the ports are
// linked. The caller of Discover may change it.
type Topology struct {
	Nodes    []*Node    // the local node, followed by the others, ordered by the number of hops to them
	Problems []*Problem // requests that failed, ordered by their routes
}

// Node is a node of a fabric.
type Node struct {
	NodeInfo
	Description string
	Route       Route       // a shortest route from the local port
	Switch      *SwitchInfo // nil if the node is not a switch, or did not answer the request for it
	Ports       []*Port     // all ports of a switch, and those ports of another node that Discover has reached; ordered by their numbers
}

// Port is a port of a Node.
type Port struct {
	PortInfo
	Node   *Node
	Number int   // number of the port; 0 is the management port of a switch
	GUID   GUID  // GUID of the port; all ports of a switch have the same one
	Peer   *Port // port at the other end of the link; nil if there is no link, or if the node there did not answer
	Known  bool  // whether the node has answered the request for PortInfo; if not, PortInfo is zero
}

// Problem is a request of Discover that failed. Discover continues with the
// other nodes.
type Problem struct {
	Node *Node // node that was asked; if the node is unknown because it did not answer, the node before it on the route
	Port int   // port of Node that leads to the unknown node; 0 if Node was asked
	Err  *Error
}

// Error describes the error and where it occurred.
func (p *Problem) Error() string {
	where := ""
	if p.Node != nil {
		where = fmt.Sprintf("%s %s %q", p.Node.Type, p.Node.GUID, p.Node.Description)
		if p.Port != 0 {
			where = fmt.Sprintf("behind port %d of %s", p.Port, where)
		}
		where += ": "
	}
	if p.Err == nil { // in a problem that a program has made
		return where + "unknown problem"
	}
	return where + p.Err.Error()
}

// Unwrap returns Err.
func (p *Problem) Unwrap() error {
	if p.Err == nil {
		return nil
	}
	return p.Err
}

// Name returns a name for messages: the node's description, or its GUID if it
// has no description.
func (n *Node) Name() string { return cmp.Or(n.Description, n.GUID.String()) }

// Port returns the port with a number, or nil if it is not known.
func (n *Node) Port(number int) *Port {
	if i, ok := n.find(number); ok {
		return n.Ports[i]
	}
	return nil
}

// find returns the index in Ports of the port with a number, or if there is
// none, the index at which to insert it.
func (n *Node) find(number int) (int, bool) {
	return slices.BinarySearchFunc(n.Ports, number, func(p *Port, number int) int { return cmp.Compare(p.Number, number) })
}

// BaseLID returns the LID to which management datagrams for the node are sent.
// That is the LID of port 0 of a switch. On another node, it is the LID of the
// port at the end of Route. BaseLID returns 0 if the subnet manager has
// assigned no LID.
func (n *Node) BaseLID() LID {
	number := n.LocalPort
	if n.Type == Switch {
		number = 0
	}
	if p := n.Port(number); p != nil {
		return p.LID
	}
	return 0
}

// BaseLID returns the LID of the port. All ports of a switch have the same LID.
func (p *Port) BaseLID() LID {
	if p.Node.Type == Switch {
		return p.Node.BaseLID()
	}
	return p.LID
}

// Node returns the node with a GUID, or nil if there is none.
func (t *Topology) Node(guid GUID) *Node {
	for _, n := range t.Nodes {
		if n.GUID == guid {
			return n
		}
	}
	return nil
}

// Links returns the two ports of each link of the fabric. The first port is
// that of the node that comes first in Nodes.
func (t *Topology) Links() iter.Seq2[*Port, *Port] {
	return func(yield func(*Port, *Port) bool) {
		seen := map[*Port]bool{}
		for _, n := range t.Nodes {
			for _, p := range n.Ports {
				if p.Peer == nil || seen[p] {
					continue
				}
				seen[p.Peer] = true
				if !yield(p, p.Peer) {
					return
				}
			}
		}
	}
}

// Discover asks all nodes that can be reached from the local port, and returns
// what they are and how they are linked, as ibnetdiscover does. Requests go
// over directed routes, up to Config.InFlight at a time.
//
// A node that does not answer, or whose route would be longer than MaxHops, is
// in Problems, and so are nodes that have the same GUID. Discover fails if the
// local node does not answer. It returns what it has found so far, and an
// error, if ctx ends, if the local port fails, or if the nodes have more than
// 1048576 ports, which no real fabric has.
func (c *Client) Discover(ctx context.Context) (*Topology, error) { return c.discover(ctx, maxPorts) }

// discover does the work of Discover. It fails if the topology has more than
// about maxPorts ports.
func (c *Client) discover(ctx context.Context, maxPorts int) (*Topology, error) {
	if err := c.use(ctx, "Discover"); err != nil {
		return nil, err
	}
	defer c.object.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d := &discovery{client: c, fail: cancel, nodes: map[GUID]*Node{}, room: maxPorts}
	d.wake.L = &d.mu
	d.add(func() { d.visit(ctx, Route{}, nil) })
	d.run(ctx)
	if d.first == nil {
		if len(d.problems) > 0 {
			return nil, d.problems[0].Err
		}
		return nil, context.Cause(ctx)
	}
	d.route()
	for d.resume(ctx) {
		d.run(ctx)
		d.route()
	}
	return d.topology(), context.Cause(ctx)
}

// discovery is the state of a call of Discover.
type discovery struct {
	client *Client
	fail   context.CancelCauseFunc

	mu       sync.Mutex
	wake     sync.Cond
	tasks    []func() // requests to send, in the order in which they were added, so that near nodes are asked before distant ones
	working  int      // number of tasks that are running
	first    *Node    // the local node
	nodes    map[GUID]*Node
	problems []*Problem
	ends     []*Port // ports whose peers are more than MaxHops away
	room     int     // number of ports that may still be added
}

// maxPorts is the approximate maximum number of ports of a Topology. A subnet
// has at most 49151 LIDs for nodes, and switches for so many nodes have fewer
// ports than this. A faulty or hostile node, which can answer for any number of
// nodes behind it, must not fill the memory.
const maxPorts = 1 << 20

// add adds a task for run.
func (d *discovery) add(task func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.addLocked(task)
}

func (d *discovery) addLocked(task func()) {
	d.tasks = append(d.tasks, task)
	d.wake.Signal()
}

// run runs all tasks, and the tasks that they add, up to Config.InFlight at a
// time. If ctx ends, it drops the tasks that have not begun.
func (d *discovery) run(ctx context.Context) {
	var workers sync.WaitGroup
	for range d.client.config.InFlight {
		workers.Go(func() {
			for task := d.next(ctx); task != nil; task = d.next(ctx) {
				task()
				d.mu.Lock()
				d.working--
				d.wake.Broadcast()
				d.mu.Unlock()
			}
		})
	}
	workers.Wait()
}

// next waits for a task and returns it. It returns nil if there are no tasks,
// and none is running that could add one.
func (d *discovery) next(ctx context.Context) func() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if ctx.Err() != nil {
			d.tasks = nil
		}
		if len(d.tasks) > 0 {
			task := d.tasks[0]
			d.tasks = d.tasks[1:]
			d.working++
			return task
		}
		if d.working == 0 {
			return nil
		}
		d.wake.Wait()
	}
}

// failed reports whether a request has failed with err. If so, it adds a
// problem, unless ctx has ended. If the local port has failed, it also ends the
// discovery.
func (d *discovery) failed(ctx context.Context, n *Node, port int, err error) bool {
	if err == nil {
		return false
	}
	if ctx.Err() != nil {
		return true
	}
	e, ok := errors.AsType[*Error](err)
	if _, broken := errors.AsType[*portError](err); broken || !ok {
		d.fail(err)
	}
	if ok {
		d.mu.Lock()
		d.problems = append(d.problems, &Problem{n, port, e})
		d.mu.Unlock()
	}
	return true
}

// visit asks the node at the end of a route what it is. from is the port that
// leads to the node, or nil if the node is the local one.
func (d *discovery) visit(ctx context.Context, route Route, from *Port) {
	info, err := d.client.NodeInfo(ctx, AtRoute(route))
	var before *Node
	port := 0
	if from != nil {
		before, port = from.Node, from.Number
	}
	if d.failed(ctx, before, port, err) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.nodes[info.GUID]
	if n != nil && !n.sameNode(&info) {
		d.problems = append(d.problems, &Problem{before, port, &Error{Op: "Discover", Address: AtRoute(route), Err: fmt.Errorf(
			"two nodes have the GUID %s: a %s (ports: %d), and the %s at %s (ports: %d)",
			info.GUID, info.Type, info.NumPorts, n.Type, n.Route, n.NumPorts)}})
		return
	}
	if n == nil {
		n = &Node{NodeInfo: info, Route: route}
		d.nodes[info.GUID] = n
		d.addLocked(func() { d.describe(ctx, n, route) })
		if n.Type == Switch {
			d.addLocked(func() { d.askSwitch(ctx, n, route) })
			for number := range min(n.NumPorts, maxPort) + 1 {
				d.port(ctx, n, route, number)
			}
		}
	}
	if d.first == nil {
		d.first = n
	}
	p := d.port(ctx, n, route, info.LocalPort)
	if n.Type != Switch {
		p.GUID = info.PortGUID
	}
	if from != nil {
		d.link(from, p, AtRoute(route))
	}
}

// sameNode reports whether info can be an answer of the node, at any port.
func (n *Node) sameNode(info *NodeInfo) bool {
	return n.Type == info.Type && n.NumPorts == info.NumPorts && n.SystemGUID == info.SystemGUID &&
		n.VendorID == info.VendorID && n.DeviceID == info.DeviceID
}

// port returns a port of a node. If the port is new, it adds the task that asks
// for its PortInfo. The caller holds mu.
func (d *discovery) port(ctx context.Context, n *Node, route Route, number int) *Port {
	if p := n.Port(number); p != nil {
		return p
	}
	p := &Port{Node: n, Number: number, GUID: n.PortGUID}
	i, _ := n.find(number)
	n.Ports = slices.Insert(n.Ports, i, p)
	if d.room--; d.room < 0 {
		d.fail(&Error{Op: "Discover", Address: AtRoute(route), Err: errTooLarge})
		return p
	}
	d.addLocked(func() { d.askPort(ctx, p, route) })
	return p
}

var errTooLarge = fmt.Errorf("the nodes have more than %d ports, which no fabric has: a node answers for nodes that do not exist", maxPorts)

// link links two ports. If one of them was linked to another port before, link
// replaces the link and adds a problem: a cable was moved, or two nodes have
// the same GUID. The caller holds mu.
func (d *discovery) link(from, to *Port, at Address) {
	for _, p := range []*Port{from, to} {
		other := p.Peer
		if other == nil || p == from && other == to || p == to && other == from {
			continue
		}
		d.problems = append(d.problems, &Problem{p.Node, p.Number, &Error{Op: "Discover", Address: at, Err: fmt.Errorf(
			"the port was linked to port %d of %s before: a cable was moved, or two nodes have the same GUID", other.Number, other.Node.GUID)}})
		other.Peer = nil
	}
	from.Peer, to.Peer = to, from
}

func (d *discovery) describe(ctx context.Context, n *Node, route Route) {
	text, err := d.client.NodeDescription(ctx, AtRoute(route))
	if !d.failed(ctx, n, 0, err) {
		d.mu.Lock()
		n.Description = text
		d.mu.Unlock()
	}
}

func (d *discovery) askSwitch(ctx context.Context, n *Node, route Route) {
	info, err := d.client.SwitchInfo(ctx, AtRoute(route))
	if !d.failed(ctx, n, 0, err) {
		d.mu.Lock()
		n.Switch = &info
		d.mu.Unlock()
	}
}

func (d *discovery) askPort(ctx context.Context, p *Port, route Route) {
	info, err := d.client.PortInfo(ctx, AtRoute(route), p.Number)
	if d.failed(ctx, p.Node, 0, err) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p.PortInfo, p.Known = info, true
	// Only switches forward directed routes. A route leaves the local node
	// through the local port.
	forwards := p.Node.Type == Switch || p.Node == d.first && p.Number == d.first.LocalPort
	if p.Number != 0 && p.PhysState == link.PhysLinkUp && forwards && p.Peer == nil {
		d.follow(ctx, p)
	}
}

// follow adds the task that visits the node at the other end of a port's link.
// The caller holds mu.
func (d *discovery) follow(ctx context.Context, from *Port) {
	route, err := from.Node.Route.Then(from.Number)
	if err != nil {
		d.ends = append(d.ends, from)
		return
	}
	d.addLocked(func() { d.visit(ctx, route, from) })
}

// resume follows the links of d.ends again, because route may have found a
// shorter route to them. It reports whether it has added tasks.
func (d *discovery) resume(ctx context.Context) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	ends := d.ends
	d.ends = nil
	for _, p := range ends {
		if p.Peer == nil {
			d.follow(ctx, p)
		}
	}
	return len(d.tasks) > 0 && ctx.Err() == nil
}

// route sets the Route of every node to the shortest one, so that the result
// does not depend on the order of the answers.
func (d *discovery) route() {
	d.first.Route = Route{}
	seen := map[*Node]bool{d.first: true}
	for queue := []*Node{d.first}; len(queue) > 0; queue = queue[1:] {
		n := queue[0]
		for _, p := range n.Ports {
			if p.Peer == nil || p.Number == 0 || seen[p.Peer.Node] || n.Type != Switch && (n != d.first || p.Number != n.LocalPort) {
				continue
			}
			route, err := n.Route.Then(p.Number)
			if err != nil {
				continue
			}
			next := p.Peer.Node
			seen[next] = true
			next.Route, next.LocalPort, next.PortGUID = route, p.Peer.Number, p.Peer.GUID
			queue = append(queue, next)
		}
	}
}

// topology returns the result. It reports the ports whose peers are too far
// away (d.ends) in its Problems.
func (d *discovery) topology() *Topology {
	for _, p := range d.ends {
		_, err := p.Node.Route.Then(p.Number)
		d.problems = append(d.problems, &Problem{p.Node, p.Number, &Error{Op: "Discover", Address: AtRoute(p.Node.Route), Err: err}})
	}
	for _, n := range d.nodes {
		for _, p := range n.Ports {
			if p.Peer != nil && p.Known && p.down() {
				d.problems = append(d.problems, &Problem{n, p.Number, &Error{Op: "Discover", Address: AtRoute(n.Route), Port: p.Number, Err: fmt.Errorf(
					"the port is linked to port %d of %s, but has answered that its link is down: a cable was moved, or two nodes have the same GUID",
					p.Peer.Number, p.Peer.Node.GUID)}})
			}
		}
	}
	t := &Topology{Nodes: slices.Collect(maps.Values(d.nodes)), Problems: d.problems}
	slices.SortFunc(t.Nodes, func(a, b *Node) int { return cmp.Or(a.Route.Compare(b.Route), cmp.Compare(a.GUID, b.GUID)) })
	slices.SortStableFunc(t.Problems, func(a, b *Problem) int {
		return cmp.Or(a.Err.Address.route.Compare(b.Err.Address.route), cmp.Compare(a.Err.Port, b.Err.Port), cmp.Compare(a.Err.Op, b.Err.Op))
	})
	return t
}

// down reports whether the port has no link.
func (p *Port) down() bool {
	return p.PhysState == link.PhysSleep || p.PhysState == link.PhysPolling || p.PhysState == link.PhysDisabled
}

// Rate returns the speed of the link, or 0 if the link is down.
func (p *Port) Rate() link.Speed {
	if p.State <= link.Down {
		return 0
	}
	return link.Speed(p.Width.Lanes()) * p.Speed.Rate()
}
