package ibverbs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/internal/cerr"
)

// GIDOptions say which GIDs will do. The zero value allows all.
type GIDOptions struct {
	Types  []GIDType  // nil: all
	NetDev string     // that network interface's only
	Addr   netip.Addr // that IP address's only
}

func (o GIDOptions) allow(e GIDEntry) bool {
	return (o.Types == nil || slices.Contains(o.Types, e.Type)) &&
		(o.NetDev == "" || o.NetDev == e.NetDev) &&
		(!o.Addr.IsValid() || o.Addr.Unmap().WithZone("") == e.GID.Addr())
}

// BestGID returns the GID of a port to connect with: for RoCE that of an IPv4
// or global IPv6 address rather than a link-local one, and RoCE v2 rather than
// v1; of several that are equally good the first, which for InfiniBand is that
// at index 0. If none will do, the error is ErrNoGID and lists those that
// there are.
func (d *Device) BestGID(port int, options GIDOptions) (GIDEntry, error) {
	entries, err := d.QueryPortGIDs(port)
	if err != nil {
		return GIDEntry{}, err
	}
	best, ok := bestGID(entries, options)
	if !ok {
		return GIDEntry{}, noGID(portName(d, port), entries)
	}
	return best, nil
}

// FindGID returns the GID of an IP address on any port; RoCE v2 comes first.
// Without one, the error is ErrNoGID and lists those that there are.
func (d *Device) FindGID(addr netip.Addr) (GIDEntry, error) {
	entries, err := d.QueryGIDTable()
	if err != nil {
		return GIDEntry{}, err
	}
	best, ok := bestGID(entries, GIDOptions{Addr: addr})
	if !ok || !addr.IsValid() {
		return GIDEntry{}, noGID(fmt.Sprintf("%s: address %s", d.Name(), addr), entries)
	}
	return best, nil
}

func bestGID(entries []GIDEntry, options GIDOptions) (best GIDEntry, ok bool) {
	for _, e := range entries {
		if options.allow(e) && (!ok || e.rank() > best.rank()) {
			best, ok = e, true
		}
	}
	return best, ok
}

// rank is the higher the better.
func (e GIDEntry) rank() int {
	rank := 0
	if e.Type == GIDTypeRoCEv2 {
		rank++
	}
	if e.Type != GIDTypeIB && !e.GID.Addr().IsLinkLocalUnicast() {
		rank += 2
	}
	return rank
}

// gidsShown is how many GIDs an error lists.
const gidsShown = 8

func noGID(object string, entries []GIDEntry) error {
	if len(entries) == 0 {
		return fmt.Errorf("%s: %w: there is none at all%s", object, ErrNoGID, cerr.Doctor)
	}
	var list []string
	for _, e := range entries[:min(len(entries), gidsShown)] {
		list = append(list, e.String())
	}
	if more := len(entries) - gidsShown; more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%s: %w: there are %s", object, ErrNoGID, strings.Join(list, "; "))
}
