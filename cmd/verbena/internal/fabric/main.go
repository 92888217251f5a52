// SPDX-License-Identifier: Apache-2.0

// Package fabric is the command verbena fabric. It shows the nodes, links and
// counters of an InfiniBand fabric.
package fabric

import (
	"context"
	"strconv"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/fabric"
)

// Commands returns the commands below verbena fabric.
func Commands() *program.Commands {
	return &program.Commands{
		Name: "verbena fabric", Summary: "look at an InfiniBand fabric: its nodes, links and counters",
		Text: `
They send management datagrams from a port of this machine, which needs access
to /dev/infiniband/umad*, and so root on most machines, and Debian's package
libibumad3.

An ADDRESS is a LID, such as 5 or 0x5, or a directed route, such as 0,1,5: a 0
for the local port, and the port through which the datagram leaves each node on
the way. 0 alone is the local port. Routes need no subnet manager.

Example: verbena fabric discover`,
		All: []program.Command{
			{Name: "discover", Program: func() *program.Program { return (&discover{}).program() }},
			{Name: "counters", Program: func() *program.Program { return (&counters{}).program() }},
			{Name: "node", Program: func() *program.Program { return (&node{}).program() }},
			{Name: "port", Program: func() *program.Program { return (&port{}).program() }},
			{Name: "switch", Program: func() *program.Program { return (&switchOf{}).program() }},
		},
	}
}

// local holds the flags that all of the commands have. They choose the local
// port from which a command sends requests, and how often and how long it waits
// for answers.
type local struct {
	config  fabric.Config
	mkey    string
	retries int
	asJSON  bool
}

func (l *local) flags(f *program.Flags) {
	l.config.Timeout, l.retries = fabric.DefaultTimeout, fabric.DefaultRetries
	f.StringVarP(&l.config.Device, "device", "d", "", "`name` of the RDMA device (default: the first with an active InfiniBand port)")
	f.Number(&l.config.Port, "port", "p", 1, 254, "`number` of the device's port (default: the first that is active)")
	f.Milliseconds(&l.config.Timeout, "timeout", "t", "time to wait for an answer, in `milliseconds`")
	f.Number(&l.retries, "retries", "n", 0, 100, "`number` of times to ask again")
	f.StringVarP(&l.mkey, "mkey", "y", "", "the fabric's M_Key, a `number` such as 0x1a2b (default: 0)")
	f.JSON(&l.asJSON)
}

// open opens the local port that the flags choose.
func (l *local) open() (*fabric.Client, error) {
	l.config.Retries = l.retries
	if l.retries == 0 {
		l.config.Retries = -1
	}
	if l.mkey != "" {
		key, err := strconv.ParseUint(l.mkey, 0, 64)
		if err != nil {
			return nil, program.Misuse("the M_Key %q is not a number of 64 bits", l.mkey)
		}
		l.config.MKey = key
	}
	return fabric.Open(l.config)
}

// addressOf returns the address that an operand names. If the operand is empty,
// that is the address of the local port.
func addressOf(operand string) (fabric.Address, error) {
	if operand == "" {
		return fabric.Address{}, nil
	}
	address, err := fabric.ParseAddress(operand)
	if err != nil {
		return address, program.Misuse("%v", err)
	}
	return address, nil
}

// portOf returns the port number that an operand names, or -1 if the operand is
// empty.
func portOf(operand string, highest int) (int, error) {
	if operand == "" {
		return -1, nil
	}
	number, err := strconv.Atoi(operand)
	if err != nil || number < 0 || number > highest {
		return 0, program.Misuse("port %q is not a number from 0 to %d", operand, highest)
	}
	return number, nil
}

// ask opens the local port, and calls f with it and the address that the
// operand names.
func (l *local) ask(ctx context.Context, operand string, f func(context.Context, *fabric.Client, fabric.Address) error) error {
	address, err := addressOf(operand)
	if err != nil {
		return err
	}
	client, err := l.open()
	if err != nil {
		return err
	}
	defer client.Close()
	return f(ctx, client, address)
}

const text = `

Exit status: 0 if the node answered; 1 if not; 2 for wrong arguments.

Example: `

// node is the command verbena fabric node, which shows a node's description and
// NodeInfo.
type node struct {
	local
	address string
}

func (n *node) program() *program.Program {
	return &program.Program{
		Name: "verbena fabric node", Usage: "verbena fabric node [-d device] [-p port] [-j] [ADDRESS]", Misused: program.ExitMisused,
		Summary: "show what a node is", Operands: []*string{&n.address}, Flags: n.flags, Run: n.run,
		Text: `
Shows the description of a node and its NodeInfo, as smpquery nodedesc and
smpquery nodeinfo do: what it is, its GUIDs, and how many ports it has.` + text + `verbena fabric node 0,1`,
	}
}

// nodeReport is what is printed about a node.
type nodeReport struct {
	Address     fabric.Address `json:"address"`
	Description string         `json:"description"`
	fabric.NodeInfo
}

func (n *node) run(ctx context.Context, out program.Output) error {
	return n.ask(ctx, n.address, func(ctx context.Context, client *fabric.Client, address fabric.Address) error {
		info, err := client.NodeInfo(ctx, address)
		if err != nil {
			return err
		}
		description, err := client.NodeDescription(ctx, address)
		if err != nil {
			return err
		}
		return n.print(out, nodeReport{address, description, info})
	})
}

// port is the command verbena fabric port, which shows the PortInfo of a port.
type port struct {
	local
	address, port string
}

func (p *port) program() *program.Program {
	return &program.Program{
		Name: "verbena fabric port", Usage: "verbena fabric port [-d device] [-p port] [-j] [ADDRESS [PORT]]", Misused: program.ExitMisused,
		Summary: "show the state of a port and its link", Operands: []*string{&p.address, &p.port}, Flags: p.flags, Run: p.run,
		Text: `
Shows the PortInfo of a port, as smpquery portinfo does: its state, the width
and speed of its link, its LID, and its configuration. Without PORT, that is
port 0 of a switch, and of another node the port that the request arrives at.` + text + `verbena fabric port 5 1`,
	}
}

// portReport is what is printed about a port.
type portReport struct {
	Address fabric.Address `json:"address"`
	Port    int            `json:"port"`
	fabric.PortInfo
}

func (p *port) run(ctx context.Context, out program.Output) error {
	number, err := portOf(p.port, fabric.AllPorts-1)
	if err != nil {
		return err
	}
	number = max(number, 0)
	return p.ask(ctx, p.address, func(ctx context.Context, client *fabric.Client, address fabric.Address) error {
		info, err := client.PortInfo(ctx, address, number)
		if err != nil {
			return err
		}
		return p.print(out, portReport{address, number, info})
	})
}

// switchOf is the command verbena fabric switch, which shows the SwitchInfo of
// a switch.
type switchOf struct {
	local
	address string
}

func (s *switchOf) program() *program.Program {
	return &program.Program{
		Name: "verbena fabric switch", Usage: "verbena fabric switch [-d device] [-p port] [-j] [ADDRESS]", Misused: program.ExitMisused,
		Summary: "show the sizes and the state of a switch's tables", Operands: []*string{&s.address}, Flags: s.flags, Run: s.run,
		Text: `
Shows the SwitchInfo of a switch, as smpquery switchinfo does. Nodes that are no
switches answer with an error.` + text + `verbena fabric switch 0,1`,
	}
}

// switchReport is what is printed about a switch.
type switchReport struct {
	Address fabric.Address `json:"address"`
	fabric.SwitchInfo
}

func (s *switchOf) run(ctx context.Context, out program.Output) error {
	return s.ask(ctx, s.address, func(ctx context.Context, client *fabric.Client, address fabric.Address) error {
		info, err := client.SwitchInfo(ctx, address)
		if err != nil {
			return err
		}
		return s.print(out, switchReport{address, info})
	})
}
