package ibverbs

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/enum"
)

// ErrNoGID says that a port's GID table has no such entry.
var ErrNoGID = errors.New("no such GID")

// GIDType is the protocol that a GID is for.
type GIDType uint32

// The types of GIDs. RoCE v2 can be routed, as it runs over UDP.
const (
	GIDTypeIB     GIDType = GIDType(libibverbs.IBV_GID_TYPE_IB)
	GIDTypeRoCEv1 GIDType = GIDType(libibverbs.IBV_GID_TYPE_ROCE_V1)
	GIDTypeRoCEv2 GIDType = GIDType(libibverbs.IBV_GID_TYPE_ROCE_V2)
)

var gidTypes = enum.Values{Type: "GIDType", Names: []enum.Name{
	{Value: int64(GIDTypeIB), Name: "IB"},
	{Value: int64(GIDTypeRoCEv1), Name: "RoCE v1"},
	{Value: int64(GIDTypeRoCEv2), Name: "RoCE v2"},
}}

// String returns the name of the protocol, such as RoCE v2.
func (t GIDType) String() string { return gidTypes.String(int64(t)) }

// MarshalText is String.
func (t GIDType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads what String gives.
func (t *GIDType) UnmarshalText(text []byte) error { return parseName(&gidTypes, text, t) }

// ParseGID reads a GID, in the notation of an IPv6 address. An IPv4 address
// gives the GID that RoCE v2 has for it.
func ParseGID(s string) (GID, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil || addr.Zone() != "" {
		return GID{}, fmt.Errorf("%q is no GID", s)
	}
	return GIDFromAddr(addr), nil
}

// GIDFromAddr returns the GID that RoCE v2 has for an IP address; an IPv6
// zone is lost.
func GIDFromAddr(addr netip.Addr) GID {
	if !addr.IsValid() {
		return GID{}
	}
	return GID(addr.As16())
}

// MarshalText is String.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText is ParseGID.
func (g *GID) UnmarshalText(text []byte) error {
	parsed, err := ParseGID(string(text))
	if err == nil {
		*g = parsed
	}
	return err
}

// ParseGUID reads a GUID as String gives it, or as 16 hexadecimal digits, with
// or without 0x.
func ParseGUID(s string) (GUID, error) {
	digits := strings.TrimPrefix(s, "0x")
	if groups := strings.Split(digits, ":"); len(groups) == 4 {
		digits = ""
		for _, g := range groups {
			digits += strings.Repeat("0", max(4-len(g), 0)) + g
		}
	}
	v, err := strconv.ParseUint(digits, 16, 64)
	if err != nil || len(digits) != 16 {
		return 0, fmt.Errorf("%q is no GUID", s)
	}
	return GUID(v), nil
}

// MarshalText is String.
func (g GUID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText is ParseGUID.
func (g *GUID) UnmarshalText(text []byte) error {
	parsed, err := ParseGUID(string(text))
	if err == nil {
		*g = parsed
	}
	return err
}
