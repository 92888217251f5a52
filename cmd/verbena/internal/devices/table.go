// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"cmp"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
)

const none = "-" // what is printed for nothing

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

func printPorts(w io.Writer, devices []ibverbs.DeviceInfo) error {
	t := newTable(w)
	fmt.Fprintln(t, "DEVICE\tNODE GUID\tFIRMWARE\tPORT\tPORT GUID\tSTATE\tLINK\tMTU\tSPEED\tINTERFACE")
	for _, d := range devices {
		for _, p := range d.Ports {
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s of %s\t%s\t%s\n",
				d.Device.Name, d.Device.GUID, cmp.Or(d.Attr.FirmwareVersion, none), p.Port, portGUID(p), p.State,
				linkLayer(p.LinkLayer), p.ActiveMTU, p.MaxMTU, speed(p), cmp.Or(p.NetDev, none))
		}
	}
	return t.Flush()
}

func linkLayer(l link.Layer) string {
	return strings.ToLower(strings.TrimPrefix(l.String(), "IBV_LINK_LAYER_"))
}

func speed(p ibverbs.PortInfo) string {
	if p.Rate == 0 { // the link is down
		return none
	}
	return fmt.Sprintf("%g (%s %s)", p.Rate, p.ActiveWidth, p.ActiveSpeed)
}

// portGUID returns the port's GUID, which is in the first GID on InfiniBand.
func portGUID(p ibverbs.PortInfo) string {
	if p.LinkLayer != link.InfiniBand || len(p.GIDs) == 0 || p.GIDs[0].Index != 0 {
		return none
	}
	return p.GIDs[0].GID.String()[len("fe80:0000:0000:0000:"):]
}

// gid is a line of the output of -g.
type gid struct {
	device string
	ibverbs.GIDEntry
}

// ipv4 returns the IPv4 address in the GID, or "" if it has none.
func (g gid) ipv4() string {
	if ip := g.GID.Addr(); g.Type != ibverbs.GIDTypeIB && ip.Is4() {
		return ip.String()
	}
	return ""
}

// MarshalJSON returns the fields of a GID entry, with the device and the IPv4
// address.
func (g gid) MarshalJSON() ([]byte, error) {
	o := append(object{{"device", g.device}}, members(reflect.ValueOf(g.GIDEntry))...)
	return append(o, member{"ipv4", g.ipv4()}).MarshalJSON()
}

func gids(devices []ibverbs.DeviceInfo) []gid {
	all := []gid{}
	for _, d := range devices {
		for _, p := range d.Ports {
			for _, e := range p.GIDs {
				all = append(all, gid{d.Device.Name, e})
			}
		}
	}
	return all
}

func printGIDs(w io.Writer, all []gid) error {
	t := newTable(w)
	fmt.Fprintln(t, "DEVICE\tPORT\tINDEX\tGID\tIPV4\tTYPE\tINTERFACE")
	for _, g := range all {
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\t%s\n",
			g.device, g.Port, g.Index, g.GID, cmp.Or(g.ipv4(), none), g.Type, cmp.Or(g.NetDev, none))
	}
	return t.Flush()
}
