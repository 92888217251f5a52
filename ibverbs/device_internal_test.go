// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"math"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// tooLarge is more than C's int can have, and less where Go's cannot have more.
var tooLarge = func() int {
	n := math.MaxInt32
	n++
	return n
}()

// A nil or zero object answers the questions about devices with an error.
func TestDeviceNotOpened(t *testing.T) {
	for name, call := range map[string]func(bool) error{
		"Device.QueryPortSpeed": func(zero bool) error { return second(pick(zero, &Device{}).QueryPortSpeed(1)) },
		"Device.QueryGIDEntry":  func(zero bool) error { return second(pick(zero, &Device{}).QueryGIDEntry(1, 0)) },
		"Device.QueryGIDTable":  func(zero bool) error { return second(pick(zero, &Device{}).QueryGIDTable()) },
		"Device.QueryPortGIDs":  func(zero bool) error { return second(pick(zero, &Device{}).QueryPortGIDs(1)) },
		"Device.BestGID":        func(zero bool) error { return second(pick(zero, &Device{}).BestGID(1, GIDConfig{})) },
		"Device.FindGID":        func(zero bool) error { return second(pick(zero, &Device{}).FindGID(netip.Addr{})) },
		"Device.NetDev":         func(zero bool) error { return second(pick(zero, &Device{}).NetDev(1)) },
		"Device.QueryPKey":      func(zero bool) error { return second(pick(zero, &Device{}).QueryPKey(1, 0)) },
		"Device.QueryPKeyTable": func(zero bool) error { return second(pick(zero, &Device{}).QueryPKeyTable(1)) },
		"Device.PKeyIndex":      func(zero bool) error { return second(pick(zero, &Device{}).PKeyIndex(1, PKeyDefault)) },
		"Device.RawClock":       func(zero bool) error { return second(pick(zero, &Device{}).RawClock()) },
		"Device.QueryInfo":      func(zero bool) error { return second(pick(zero, &Device{}).QueryInfo()) },
		"QP.Addr":               func(zero bool) error { return second(pick(zero, &QP{}).Addr(QPAddrConfig{})) },
		"QP.ConnectTo":          func(zero bool) error { return pick(zero, &QP{}).ConnectTo(here, there, ConnectConfig{}) },
		"QP.Activate":           func(zero bool) error { return pick(zero, &QP{}).Activate(here, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, call(true), os.ErrInvalid)
			require.ErrorIs(t, call(false), os.ErrInvalid)
		})
	}
}

func TestOpenWithoutName(t *testing.T) {
	_, _, err := OpenNetDev("")
	require.EqualError(t, err, "OpenNetDev: name is empty")
	_, _, err = OpenAddr(netip.Addr{})
	require.EqualError(t, err, "OpenAddr: addr is the zero Addr")
}

func TestNoDeviceText(t *testing.T) {
	require.EqualError(t, noDevice("open x", nil, nil), "open x: no such RDMA device: this machine has none; VERBENA_DEVICE=soft selects a device in user space, in programs that import package softroce; verbena doctor says more")
	require.EqualError(t, noDevice("open x", nil, []string{"a", "b"}), "open x: no such RDMA device: "+
		"this machine has a, b, but libibverbs has no access to /dev/infiniband, or no provider for it; verbena doctor says more")
	err := noDevice("open x", []string{"b", "a"}, []string{"a", "b", "c"})
	require.EqualError(t, err, "open x: no such RDMA device: this machine has a, b")
	require.ErrorIs(t, err, ErrNoDevice)
}

func TestPKey(t *testing.T) {
	require.True(t, PKeyDefault.FullMember())
	require.False(t, PKey(0x7fff).FullMember())
	require.Equal(t, "0x7fff", PKey(0x7fff).String())
	require.Equal(t, "0x0001", PKey(1).String())
}
