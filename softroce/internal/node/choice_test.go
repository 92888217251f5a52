// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseDevices(t *testing.T) {
	const names = `want 1 to 63 letters, digits, "_", "-" and ".", of which the first is a letter or digit`
	for text, wrong := range map[string]string{
		"soft0":                           "",
		"soft0=127.0.0.1":                 "",
		"mlx5_0;b-1.x=::1,fe80::1%eth0":   "",
		strings.Repeat("x", 63):           "",
		"a/b":                             `device name "a/b": ` + names,
		"..":                              `device name "..": ` + names,
		"_a":                              `device name "_a": ` + names,
		"soft0;":                          `device name "": ` + names,
		"=127.0.0.1":                      `device name "": ` + names,
		"soft0,soft1":                     `device name "soft0,soft1": ` + names,
		"soft0:127.0.0.1":                 `device name "soft0:127.0.0.1": ` + names,
		strings.Repeat("x", 64):           `device name "` + strings.Repeat("x", 64) + `": ` + names,
		"soft0=127.0.0.1;soft0=127.0.0.2": `two devices have the name "soft0"`,
		"soft0;soft1":                     `devices "soft0" and "soft1" have no addresses: only one device can have all that are not those of others`,
		"soft0=":                          `device "soft0": "" is not an address`,
		"soft0=127.0.0.1,":                `device "soft0": "" is not an address`,
		"soft0=eth0":                      `device "soft0": "eth0" is not an address`,
		"soft0=0.0.0.0":                   `device "soft0": 0.0.0.0 is not a unicast address`,
		"soft0=ff02::1":                   `device "soft0": ff02::1 is not a unicast address`,
		"a=::1,::1":                       `device "a" has the address ::1 twice`,
		"a=127.0.0.1;b=::ffff:127.0.0.1":  `devices "a" and "b" both have the address 127.0.0.1`,
		"d" + strings.Repeat(";x", 16):    "there are 17 devices: want 16 at most",
		"d=" + strings.Repeat("::1,", 257)[:257*4-1]: `device "d" has 257 addresses: want 256 at most`,
	} {
		all, err := parseDevices(text)
		if wrong != "" {
			require.EqualError(t, err, wrong)
			continue
		}
		require.NoError(t, err, text)
		require.Len(t, all, 1+strings.Count(text, ";"))
	}
	all, err := parseDevices("a=127.0.0.1,::ffff:127.0.0.2;b")
	require.NoError(t, err)
	require.Equal(t, []DeviceConfig{
		{Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}}, {Name: "b"},
	}, all)
}

// The addresses of the devices are those of the sockets.
func TestDevicesOfInternet(t *testing.T) {
	for _, test := range []struct {
		options, devices string
		named            []string
		others           bool
		wrong            string
	}{
		{options: "udp", devices: "a", others: true},
		{options: "udp", devices: "a;b=127.0.0.2", named: []string{"127.0.0.2"}, others: true},
		{options: "udp", devices: "a=127.0.0.1;b=127.0.0.2,::1", named: []string{"127.0.0.1", "127.0.0.2", "::1"}},
		{options: "udp=127.0.0.1,127.0.0.2", devices: "a;b=127.0.0.2", named: []string{"127.0.0.1", "127.0.0.2"}},
		{options: "udp=127.0.0.1,127.0.0.2", devices: "b=127.0.0.2", named: []string{"127.0.0.2"}},
		{options: "udp=127.0.0.1", devices: "a;b=127.0.0.2", wrong: `device "b" has the address 127.0.0.2, which is not one of the network`},
	} {
		u, err := parseNetwork(test.options)
		require.NoError(t, err)
		devices, err := parseDevices(test.devices)
		require.NoError(t, err)
		err = u.choose(devices)
		if test.wrong != "" {
			require.EqualError(t, err, test.wrong)
			continue
		}
		require.NoError(t, err)
		var named []string
		for _, a := range u.named {
			named = append(named, a.String())
		}
		require.Equal(t, test.named, named, test)
		require.Equal(t, test.others, u.others, test)
	}
}

// The numbers of queue pairs tell the devices apart.
func TestNumbersOfDevices(t *testing.T) {
	n := newNode(&program{}, newDoorbell())
	n.slot = 7
	n.network = newMachine(n)
	devices, err := parseDevices("a=127.0.0.1;b=127.0.0.2;c=127.0.0.3")
	require.NoError(t, err)
	n.devices.configure(devices)
	n.devices.plugAll()
	for i, c := range n.Cards() {
		first := 7<<qpnBits + uint32(i)*(qpns/3)
		require.Same(t, c.current, n.devices.withNumber(first))
		require.Same(t, c.current, n.devices.withNumber(first+qpns/3-1))
	}
	for _, other := range []uint32{0, 1, 7<<qpnBits - 1, 7<<qpnBits + qpns/3*3, 8 << qpnBits, 1<<24 - 2} {
		require.Nil(t, n.devices.withNumber(other))
	}
}

// An empty list of addresses means what none does, and devices of a call of Use
// that fails later do not stay chosen.
func TestSetDevices(t *testing.T) {
	t.Cleanup(func() { choices.devices = nil })
	require.NoError(t, SetDevices([]DeviceConfig{{Name: "soft0", Addresses: []netip.Addr{}}}))
	require.Len(t, choices.devices, 1)
	require.Nil(t, choices.devices[0].Addresses)
	require.NoError(t, SetDevices(nil))
	require.Nil(t, choices.devices)
}

// A port has room for so many addresses, all of them unicast.
func TestCheckAddresses(t *testing.T) {
	one := netip.MustParseAddr("192.0.2.1")
	require.NoError(t, CheckAddresses([]netip.Addr{one, netip.MustParseAddr("::ffff:192.0.2.2")}))
	for _, text := range []string{"0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "::ffff:224.0.0.1"} {
		require.ErrorContains(t, CheckAddresses([]netip.Addr{one, netip.MustParseAddr(text)}), "addresses[1] is ", text)
	}
	many := make([]netip.Addr, maxAddresses+1)
	for i := range many {
		many[i] = one
	}
	require.NoError(t, CheckAddresses(many[1:]))
	require.EqualError(t, CheckAddresses(many), "there are 257 addresses: want 256 at most")
}
