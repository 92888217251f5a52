// SPDX-License-Identifier: Apache-2.0

package fabric_test

import (
	"encoding"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/fabric"
)

func TestParseLID(t *testing.T) {
	for text, want := range map[string]fabric.LID{"0": 0, "5": 5, "0x5": 5, "0xBFFF": 0xbfff, "65535": 65535} {
		lid, err := fabric.ParseLID(text)
		require.NoError(t, err, text)
		require.Equal(t, want, lid)
	}
	for _, text := range []string{"", "-1", "65536", "0x10000", "0x", "5,1", " 5", "1_0"} {
		_, err := fabric.ParseLID(text)
		require.ErrorContains(t, err, "is not a number from 0 to 65535", text)
	}
	for lid, want := range map[fabric.LID]bool{0: false, 1: true, 0xbfff: true, 0xc000: false, 0xffff: false} {
		require.Equal(t, want, lid.IsUnicast(), lid)
	}
}

func TestParseGUID(t *testing.T) {
	for text, want := range map[string]fabric.GUID{
		"0x0002c90300a1b2c3": 0x2c90300a1b2c3, "2c90300a1b2c3": 0x2c90300a1b2c3, "0002:c903:00a1:b2c3": 0x2c90300a1b2c3,
		"0": 0, "0xFFFFFFFFFFFFFFFF": math.MaxUint64,
	} {
		guid, err := fabric.ParseGUID(text)
		require.NoError(t, err, text)
		require.Equal(t, want, guid)
	}
	for _, text := range []string{"", "0x", "g", "0x00000000000000001", "1:2:3:4", "0002:c903:00a1", "-1"} {
		_, err := fabric.ParseGUID(text)
		require.ErrorContains(t, err, "GUID", text)
	}
}

// hops returns a route's text with so many hops.
func hops(n int) string { return "0" + strings.Repeat(",1", n) }

func TestParseRoute(t *testing.T) {
	for text, ports := range map[string][]int{"0": {}, "0,1": {1}, "0,1,254": {1, 254}, hops(63): slices.Repeat([]int{1}, 63)} {
		route, err := fabric.ParseRoute(text)
		require.NoError(t, err)
		require.Equal(t, ports, route.Ports())
		require.Equal(t, len(ports), route.Hops())
		require.Equal(t, text, route.String())
		again, err := fabric.RouteThrough(ports...)
		require.NoError(t, err)
		require.Equal(t, route, again)
	}
	for text, want := range map[string]string{
		"":       "does not begin with 0",
		"1,2":    "does not begin with 0",
		"0,":     `port "" is not a number`,
		"0,0":    "port is 0, want 1 to 254",
		"0,255":  "port is 255, want 1 to 254",
		"0,256":  `port "256" is not a number`,
		"0,-1":   `port "-1" is not a number`,
		"0, 1":   `port " 1" is not a number`,
		hops(64): "more than 63 hops",
	} {
		_, err := fabric.ParseRoute(text)
		require.ErrorContains(t, err, want, "%q", text)
	}
	_, err := fabric.RouteThrough(1, 255)
	require.EqualError(t, err, "route 0,1,255: port is 255, want 1 to 254")
}

func TestCompareRoutes(t *testing.T) {
	var routes []fabric.Route
	for _, text := range []string{"0", "0,1", "0,2", "0,1,1", "0,1,2", "0,2,1"} {
		route, err := fabric.ParseRoute(text)
		require.NoError(t, err)
		routes = append(routes, route)
	}
	for i, a := range routes {
		for j, b := range routes {
			require.Equal(t, min(max(i-j, -1), 1), a.Compare(b), "%s and %s", a, b)
			require.Equal(t, i == j, a == b)
		}
	}
}

func TestParseAddress(t *testing.T) {
	for text, lid := range map[string]fabric.LID{"5": 5, "0x5": 5, "49151": 49151} {
		address, err := fabric.ParseAddress(text)
		require.NoError(t, err)
		require.Equal(t, fabric.AtLID(lid), address)
		got, ok := address.LID()
		require.True(t, ok)
		require.Equal(t, lid, got)
		_, ok = address.Route()
		require.False(t, ok)
	}
	for _, text := range []string{"0", "0,1", "0,1,5"} {
		address, err := fabric.ParseAddress(text)
		require.NoError(t, err)
		route, ok := address.Route()
		require.True(t, ok)
		require.Equal(t, text, route.String())
		require.Equal(t, fabric.AtRoute(route), address)
		_, ok = address.LID()
		require.False(t, ok)
	}
	require.Equal(t, fabric.Address{}, fabric.AtLID(0), "the local port")
	for _, text := range []string{"", "0x0", "00", "49152", "65535", "x", "1,2", "0,300"} {
		_, err := fabric.ParseAddress(text)
		require.Error(t, err, text)
	}
}

// Texts come back from values, and values from texts; others leave the value as
// it is.
func TestTexts(t *testing.T) {
	route, err := fabric.RouteThrough(1, 5)
	require.NoError(t, err)
	address := fabric.AtLID(7)
	lid, guid, kind := fabric.LID(7), fabric.GUID(1<<63), fabric.Switch
	for _, v := range []interface {
		encoding.TextMarshaler
		encoding.TextUnmarshaler
	}{&lid, &guid, &route, &address, &kind} {
		text, err := v.MarshalText()
		require.NoError(t, err)
		require.NoError(t, v.UnmarshalText(text), "%s", text)
		require.Error(t, v.UnmarshalText([]byte("?")))
		again, err := v.MarshalText()
		require.NoError(t, err)
		require.Equal(t, text, again)
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, text := range []string{"5", "0x5", "0", "0,1,254", hops(64), "0x", ","} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		address, err := fabric.ParseAddress(text)
		if err != nil {
			return
		}
		again, err := fabric.ParseAddress(address.String())
		require.NoError(t, err)
		require.Equal(t, address, again)
	})
}
