// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/verbena-go/verbena/fabric"
)

// printNet prints a topology in the format of ibnetdiscover, which other
// programs read.
func printNet(w io.Writer, t *fabric.Topology) error {
	b := bufio.NewWriter(w)
	if len(t.Nodes) > 0 {
		fmt.Fprintf(b, "#\n# Topology file\n#\n# Initiated from node %016x port %016x\n", uint64(t.Nodes[0].GUID), uint64(t.Nodes[0].PortGUID))
	}
	for _, n := range t.Nodes {
		fmt.Fprintf(b, "\nvendid=%#x\ndevid=%#x\n", n.VendorID, n.DeviceID)
		if n.SystemGUID != 0 {
			fmt.Fprintf(b, "sysimgguid=%#x\n", uint64(n.SystemGUID))
		}
		if n.Type == fabric.Switch {
			printSwitch(b, n)
		} else {
			printEnd(b, n)
		}
	}
	return b.Flush()
}

// netTypes maps a node's type to its letter and its word in the format of
// ibnetdiscover. The letter is part of the name of a node.
var netTypes = map[fabric.NodeType]struct{ letter, word string }{
	fabric.Switch:         {"S", "Switch"},
	fabric.ChannelAdapter: {"H", "Ca"},
	fabric.Router:         {"R", "Rt"},
}

// netType returns the letter and the word of a node's type, or question marks
// for an unknown type, as ibnetdiscover prints them.
func netType(n *fabric.Node) (letter, word string) {
	if t, ok := netTypes[n.Type]; ok {
		return t.letter, t.word
	}
	return "?", "???"
}

func netName(n *fabric.Node) string {
	letter, _ := netType(n)
	return fmt.Sprintf("%q", fmt.Sprintf("%s-%016x", letter, uint64(n.GUID)))
}

func printSwitch(b *bufio.Writer, n *fabric.Node) {
	fmt.Fprintf(b, "switchguid=%#x(%x)\n", uint64(n.GUID), uint64(n.PortGUID))
	port0, lmc := "base", uint8(0)
	if n.Switch != nil && n.Switch.EnhancedPort0 {
		port0 = "enhanced"
	}
	if p := n.Port(0); p != nil {
		lmc = p.LMC
	}
	fmt.Fprintf(b, "Switch\t%d %s\t\t# \"%s\" %s port 0 lid %d lmc %d\n", n.NumPorts, netName(n), n.Description, port0, n.BaseLID(), lmc)
	for _, p := range n.Ports {
		if p.Peer == nil {
			continue
		}
		guid := ""
		if p.Peer.Node.Type != fabric.Switch {
			guid = fmt.Sprintf("(%x) ", uint64(p.Peer.GUID))
		}
		fmt.Fprintf(b, "[%d]\t%s[%d]%s\t\t# \"%s\" lid %d %s\n",
			p.Number, netName(p.Peer.Node), p.Peer.Number, guid, p.Peer.Node.Description, p.Peer.BaseLID(), netSpeed(p))
	}
}

func printEnd(b *bufio.Writer, n *fabric.Node) {
	_, word := netType(n)
	fmt.Fprintf(b, "%sguid=%#x\n%s\t%d %s\t\t# \"%s\"\n", strings.ToLower(word), uint64(n.GUID), word, n.NumPorts, netName(n), n.Description)
	for _, p := range n.Ports {
		if p.Peer == nil {
			continue
		}
		guid := ""
		if p.Peer.Node.Type != fabric.Switch {
			guid = fmt.Sprintf(" (%x) ", uint64(p.Peer.GUID))
		}
		fmt.Fprintf(b, "[%d](%x) \t%s[%d]%s\t\t# lid %d lmc %d \"%s\" lid %d %s\n",
			p.Number, uint64(p.GUID), netName(p.Peer.Node), p.Peer.Number, guid, p.LID, p.LMC, p.Peer.Node.Description, p.Peer.BaseLID(), netSpeed(p))
	}
}

// netSpeed returns the width and speed of a link, such as 4xHDR.
func netSpeed(p *fabric.Port) string { return strings.ToLower(p.Width.String()) + p.Speed.String() }
