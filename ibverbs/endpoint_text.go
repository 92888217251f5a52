package ibverbs

import (
	"encoding"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/internal/cerr"
)

// String returns the endpoint as a line of text without its end. It has these
// fields in this order, with one space between them:
//
//	qpn=0x000011 psn=0x0a1b2c qkey=0x00000000 lid=0 gid=0000:0000:0000:0000:0000:ffff:c000:0201 mtu=1024 reads=16 port=1 gidindex=1
//
// Numbers may be in decimal or, after 0x, hexadecimal. The MTU is in bytes.
func (e QPAddr) String() string {
	return fmt.Sprintf("qpn=0x%06x psn=0x%06x qkey=0x%08x lid=%d gid=%s mtu=%s reads=%d port=%d gidindex=%d",
		e.QPNum, e.PSN, e.QKey, e.LID, e.GID, e.MTU, e.ReadDepth, e.Port, e.GIDIndex)
}

// ParseQPAddr reads what String gives, and refuses what cannot be an
// endpoint.
func ParseQPAddr(s string) (QPAddr, error) {
	var e QPAddr
	fields := []struct {
		name string
		to   any
	}{
		{"qpn", &e.QPNum},
		{"psn", &e.PSN},
		{"qkey", &e.QKey},
		{"lid", &e.LID},
		{"gid", &e.GID},
		{"mtu", &e.MTU},
		{"reads", &e.ReadDepth},
		{"port", &e.Port},
		{"gidindex", &e.GIDIndex},
	}
	words := strings.Fields(s)
	if len(words) != len(fields) {
		return QPAddr{}, fmt.Errorf("%q is no endpoint: it has %d fields, not %d", shorten(s), len(words), len(fields))
	}
	for i, f := range fields {
		value, ok := strings.CutPrefix(words[i], f.name+"=")
		if !ok {
			return QPAddr{}, fmt.Errorf("%q is no endpoint: field %d is not %s=", shorten(s), i+1, f.name)
		}
		if err := parseField(value, f.to); err != nil {
			return QPAddr{}, fmt.Errorf("%q is no endpoint: %s: %w", shorten(s), f.name, err)
		}
	}
	if err := e.check(); err != nil {
		return QPAddr{}, cerr.Argument("ParseQPAddr", "", err)
	}
	return e, nil
}

func parseField(value string, to any) error {
	if u, ok := to.(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(value))
	}
	size := 32
	if _, ok := to.(*uint16); ok {
		size = 16
	}
	n, err := strconv.ParseUint(value, 0, size)
	if err != nil {
		return err
	}
	switch to := to.(type) {
	case *uint16:
		*to = uint16(n)
	case *uint32:
		*to = uint32(n)
	case *int:
		*to = int(n)
	}
	return nil
}

// shorten keeps what a peer sent from filling a log.
func shorten(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// MarshalText is String.
func (e QPAddr) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText is ParseQPAddr.
func (e *QPAddr) UnmarshalText(text []byte) error {
	parsed, err := ParseQPAddr(string(text))
	if err == nil {
		*e = parsed
	}
	return err
}

// endpointFields is a QPAddr without methods, which JSON would use.
type endpointFields QPAddr

// MarshalJSON gives an object with the fields of the struct.
func (e QPAddr) MarshalJSON() ([]byte, error) { return json.Marshal(endpointFields(e)) }

// UnmarshalJSON reads what MarshalJSON gives, and refuses what cannot be an
// endpoint.
func (e *QPAddr) UnmarshalJSON(text []byte) error {
	var parsed endpointFields
	if err := json.Unmarshal(text, &parsed); err != nil {
		return err
	}
	if err := QPAddr(parsed).check(); err != nil {
		return cerr.Argument("QPAddr.UnmarshalJSON", "", err)
	}
	*e = QPAddr(parsed)
	return nil
}
