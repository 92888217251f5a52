// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"fmt"
	"io"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/fabric"
)

// discover is the command verbena fabric discover, which shows the nodes and
// links of a fabric.
type discover struct {
	local
	asNet bool
}

func (d *discover) program() *program.Program {
	return &program.Program{
		Name: "verbena fabric discover", Usage: "verbena fabric discover [-d device] [-p port] [-l | -j]", Misused: program.ExitMisused,
		Summary: "find the nodes of the fabric, and how they are linked", Flags: d.allFlags, Run: d.run,
		Text: `
Asks all nodes of the fabric, over directed routes, so that no subnet manager is
needed. Shows each node, with its LID and a route to it from here, and each
link, with the state and the speed of its first end.

With -l, prints what ibnetdiscover prints, which ibsim can read.

A node that does not answer, or a part of one, does not end the discovery. It is
named on standard error, and with -j among the problems.

Exit status: 0 if all nodes answered; 1 if not; 2 for wrong arguments.

Example: verbena fabric discover`,
	}
}

func (d *discover) allFlags(f *program.Flags) {
	f.BoolVarP(&d.asNet, "list", "l", false, "print the topology as ibnetdiscover does")
	f.Number(&d.config.InFlight, "in-flight", "i", 1, 1024, fmt.Sprintf("largest `number` of requests at a time (default: %d)", fabric.DefaultInFlight))
	d.flags(f)
}

func (d *discover) run(ctx context.Context, out program.Output) error {
	if d.asNet && d.asJSON {
		return program.Misuse("-l and -j exclude each other")
	}
	return d.ask(ctx, "", func(ctx context.Context, client *fabric.Client, _ fabric.Address) error {
		t, failed := client.Discover(ctx)
		if t == nil {
			return failed
		}
		if err := d.printTopology(out.Stdout, t); err != nil {
			return err
		}
		for _, p := range t.Problems {
			fmt.Fprintf(out.Stderr, "verbena fabric discover: %v\n", p)
		}
		if failed == nil && len(t.Problems) > 0 {
			return fmt.Errorf("the discovery is incomplete: number of problems: %d", len(t.Problems))
		}
		return failed
	})
}

func (d *discover) printTopology(w io.Writer, t *fabric.Topology) error {
	switch {
	case d.asJSON:
		return program.Output{Stdout: w}.JSON(reportTopology(t))
	case d.asNet:
		return printNet(w, t)
	}
	table := newTable(w)
	fmt.Fprintln(table, "NODE\tTYPE\tGUID\tLID\tPORTS\tROUTE")
	for _, n := range t.Nodes {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\n", n.Name(), n.Type, n.GUID, lidText(n.BaseLID()), n.NumPorts, n.Route)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	fmt.Fprintln(table, "PORT\tPEER\tSTATE\tSPEED")
	for a, b := range t.Links() {
		fmt.Fprintf(table, "%s %d\t%s %d\t%s\t%s\n", a.Node.Name(), a.Number, b.Node.Name(), b.Number, stateText(a), speedText(a))
	}
	return table.Flush()
}

func lidText(lid fabric.LID) string {
	if lid == 0 {
		return none
	}
	return lid.String()
}

func stateText(p *fabric.Port) string {
	if !p.Known {
		return none
	}
	return p.State.String()
}

func speedText(p *fabric.Port) string {
	if p.Rate() == 0 {
		return none
	}
	return fmt.Sprintf("%s (%s %s)", p.Rate(), p.Width, p.Speed)
}

// The fabric in JSON.
type (
	topologyReport struct {
		Nodes    []topologyNode    `json:"nodes"`
		Problems []topologyProblem `json:"problems"`
	}
	topologyNode struct {
		fabric.NodeInfo
		Description string             `json:"description"`
		Route       fabric.Route       `json:"route"`
		LID         fabric.LID         `json:"lid"`
		Switch      *fabric.SwitchInfo `json:"switch,omitempty"`
		Ports       []topologyPort     `json:"ports"`
	}
	topologyPort struct {
		Number int              `json:"number"`
		GUID   fabric.GUID      `json:"guid"`
		Peer   *topologyPeer    `json:"peer"` // null if no peer is known
		Info   *fabric.PortInfo `json:"info"` // null if the port did not answer
	}
	topologyPeer struct {
		GUID fabric.GUID `json:"guid"` // GUID of the node
		Port int         `json:"port"`
	}
	topologyProblem struct {
		GUID  *fabric.GUID   `json:"guid"` // GUID of the node, or of the one before it; null if it was the local node
		Port  int            `json:"port"` // port that leads to a node which did not answer, or 0
		At    fabric.Address `json:"address"`
		Error string         `json:"error"`
	}
)

func reportTopology(t *fabric.Topology) topologyReport {
	report := topologyReport{Nodes: []topologyNode{}, Problems: []topologyProblem{}}
	for _, n := range t.Nodes {
		node := topologyNode{
			NodeInfo: n.NodeInfo, Description: n.Description, Route: n.Route, LID: n.BaseLID(), Switch: n.Switch, Ports: []topologyPort{},
		}
		for _, p := range n.Ports {
			port := topologyPort{Number: p.Number, GUID: p.GUID}
			if p.Known {
				port.Info = &p.PortInfo
			}
			if p.Peer != nil {
				port.Peer = &topologyPeer{p.Peer.Node.GUID, p.Peer.Number}
			}
			node.Ports = append(node.Ports, port)
		}
		report.Nodes = append(report.Nodes, node)
	}
	for _, p := range t.Problems {
		problem := topologyProblem{Port: p.Port, At: p.Err.Address, Error: p.Error()}
		if p.Node != nil {
			problem.GUID = &p.Node.GUID
		}
		report.Problems = append(report.Problems, problem)
	}
	return report
}
