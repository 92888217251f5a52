// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// LID is the local identifier of a port, which the subnet manager assigns. 0
// means that the port has none yet.
type LID uint16

// The lowest LID of multicast groups, and the permissive LID, which datagrams
// with a directed route have.
const (
	firstMulticast LID = 0xc000
	permissive     LID = 0xffff
)

// IsUnicast reports whether the LID is one that a single port can have. 0, the
// LIDs of multicast groups and the permissive LID 65535 are not.
func (l LID) IsUnicast() bool { return l > 0 && l < firstMulticast }

// String returns the LID in decimal, as infiniband-diags prints it.
func (l LID) String() string { return strconv.FormatUint(uint64(l), 10) }

// ParseLID parses a LID in decimal, or in hexadecimal after 0x.
func ParseLID(s string) (LID, error) {
	if digits, ok := strings.CutPrefix(s, "0x"); ok {
		if n, err := strconv.ParseUint(digits, 16, 16); err == nil {
			return LID(n), nil
		}
	} else if n, err := strconv.ParseUint(s, 10, 16); err == nil {
		return LID(n), nil
	}
	return 0, fmt.Errorf("LID %q is not a number from 0 to 65535", s)
}

// MarshalText returns what String returns.
func (l LID) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText parses the text that String returns, as ParseLID does.
func (l *LID) UnmarshalText(text []byte) error {
	lid, err := ParseLID(string(text))
	if err == nil {
		*l = lid
	}
	return err
}

// GUID is the global identifier of a node, a port or a system. It does not
// change when the machine starts again. 0 means that there is none.
type GUID uint64

// String returns the GUID as infiniband-diags prints it, such as
// 0x0002c90300a1b2c3.
func (g GUID) String() string { return fmt.Sprintf("0x%016x", uint64(g)) }

// guidDigits is the length of a GUID in hexadecimal.
const guidDigits = 16

// ParseGUID parses a GUID in hexadecimal. It accepts up to 16 digits, with or
// without 0x, and four groups of four digits with colons between them, as in
// sysfs.
func ParseGUID(s string) (GUID, error) {
	digits := strings.TrimPrefix(s, "0x")
	if groups := strings.Split(s, ":"); len(groups) == 4 && len(s) == guidDigits+3 {
		digits = strings.Join(groups, "")
	}
	if n, err := strconv.ParseUint(digits, 16, 64); err == nil && len(digits) <= guidDigits {
		return GUID(n), nil
	}
	return 0, fmt.Errorf("GUID %q is not a number of up to %d hexadecimal digits", s, guidDigits)
}

// MarshalText returns what String returns.
func (g GUID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText parses the text that String returns, as ParseGUID does.
func (g *GUID) UnmarshalText(text []byte) error {
	guid, err := ParseGUID(string(text))
	if err == nil {
		*g = guid
	}
	return err
}

// MaxHops is the largest number of hops of a [Route].
const MaxHops = 63

// Route is a directed route: the ports through which a packet leaves the local
// node and each switch after it. It needs no LIDs, so that it works before a
// subnet manager has run. The zero value has no hops and leads to the local
// port. Routes are comparable with ==.
type Route struct {
	hops int
	path [MaxHops]uint8
}

// RouteThrough returns the route that leaves the local node through the first
// of the ports, and each switch after it through the next of the ports. It
// fails for more than MaxHops ports, and for numbers that are not from 1 to
// 254.
func RouteThrough(ports ...int) (Route, error) {
	var r Route
	for _, port := range ports {
		next, err := r.Then(port)
		if err != nil {
			return Route{}, err
		}
		r = next
	}
	return r, nil
}

// maxPort is the largest number of a port.
const maxPort = 254

// Then returns the route that leaves the node at the end of r through a port.
func (r Route) Then(port int) (Route, error) {
	switch {
	case port < 1 || port > maxPort:
		return r, fmt.Errorf("route %s,%d: port is %d, want 1 to %d", r, port, port, maxPort)
	case r.hops == MaxHops:
		return r, fmt.Errorf("route %s,%d: more than %d hops", r, port, MaxHops)
	}
	r.path[r.hops] = uint8(port)
	r.hops++
	return r, nil
}

// Hops returns the number of hops, 0 if the route leads to the local port.
func (r Route) Hops() int { return r.hops }

// Ports returns the port of each hop.
func (r Route) Ports() []int {
	ports := make([]int, r.hops)
	for i := range ports {
		ports[i] = int(r.path[i])
	}
	return ports
}

// Compare orders routes: shorter ones first, then by their ports. It returns
// -1, 0 or 1.
func (r Route) Compare(other Route) int {
	if r.hops != other.hops {
		if r.hops < other.hops {
			return -1
		}
		return 1
	}
	return bytes.Compare(r.path[:], other.path[:])
}

// String returns the route as infiniband-diags takes it with -D, such as
// 0,1,5: a 0 for the local port, and the port of each hop.
func (r Route) String() string {
	b := []byte{'0'}
	for _, port := range r.path[:r.hops] {
		b = append(b, ',')
		b = strconv.AppendUint(b, uint64(port), 10)
	}
	return string(b)
}

// ParseRoute parses the text that String returns.
func ParseRoute(s string) (Route, error) {
	first, rest, more := strings.Cut(s, ",")
	if first != "0" {
		return Route{}, fmt.Errorf("route %q does not begin with 0, the local port", s)
	}
	var r Route
	for more {
		var hop string
		hop, rest, more = strings.Cut(rest, ",")
		port, err := strconv.ParseUint(hop, 10, 8)
		if err != nil {
			return Route{}, fmt.Errorf("route %q: port %q is not a number from 1 to %d", s, hop, maxPort)
		}
		if r, err = r.Then(int(port)); err != nil {
			return Route{}, err
		}
	}
	return r, nil
}

// MarshalText returns what String returns.
func (r Route) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses the text that String returns.
func (r *Route) UnmarshalText(text []byte) error {
	route, err := ParseRoute(string(text))
	if err == nil {
		*r = route
	}
	return err
}

// Address is the destination of a request: a LID, or a directed route. The zero
// value is the local port. Addresses are comparable with ==.
type Address struct {
	lid   LID // LID of the port; 0 if the address is a route
	route Route
}

// AtLID returns the address of the port with a LID. LID 0 is the local port.
func AtLID(lid LID) Address { return Address{lid: lid} }

// AtRoute returns the address of the node at the end of a route.
func AtRoute(r Route) Address { return Address{route: r} }

// LID returns the LID, and false if the address is a route.
func (a Address) LID() (LID, bool) { return a.lid, a.lid != 0 }

// Route returns the route, and false if the address is a LID.
func (a Address) Route() (Route, bool) { return a.route, a.lid == 0 }

// String returns the text of the LID or the route. The text of a route begins
// with 0, which is not the LID of a port.
func (a Address) String() string {
	if a.lid != 0 {
		return a.lid.String()
	}
	return a.route.String()
}

// ParseAddress parses a LID, such as 5 or 0x5, or a route, such as 0,1,5. The
// text 0 is the local port.
func ParseAddress(s string) (Address, error) {
	if s == "0" || strings.Contains(s, ",") {
		r, err := ParseRoute(s)
		return AtRoute(r), err
	}
	lid, err := ParseLID(s)
	if err == nil && !lid.IsUnicast() {
		err = fmt.Errorf("LID %s is not one that a port can have, which are 1 to %d", s, firstMulticast-1)
	}
	if err != nil {
		return Address{}, fmt.Errorf("address %q is neither a LID nor a route such as 0,1,5: %w", s, err)
	}
	return AtLID(lid), nil
}

// MarshalText returns what String returns.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText parses the text that String returns.
func (a *Address) UnmarshalText(text []byte) error {
	address, err := ParseAddress(string(text))
	if err == nil {
		*a = address
	}
	return err
}
