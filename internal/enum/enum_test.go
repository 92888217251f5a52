// SPDX-License-Identifier: Apache-2.0

package enum

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	level = &Values{Type: "Level", Signed: true, Names: []Name{
		{Value: -1, Name: "LEVEL_BELOW"},
		{Value: 0, Name: "LEVEL_ZERO"},
		{Value: 0, Name: "LEVEL_ALIAS"},
		{Value: 7, Name: "LEVEL_SEVEN"},
	}}
	spec = &Values{Type: "Spec", Modifier: 0x100, Names: []Name{
		{Value: 0x20, Name: "SPEC_ETH"},
		{Value: 0x30, Name: "SPEC_IP"},
		{Value: 0x30, Name: "SPEC_OLD_IP"},
		{Value: 0x100, Name: "SPEC_INNER"},
		{Value: 0x1020, Name: "SPEC_ACTION"},
	}}
	status = &Texts{
		Values: Values{Type: "Status", Names: []Name{
			{Value: 0, Name: "STATUS_GOOD"}, {Value: 1, Name: "STATUS_BAD"}, {Value: 2, Name: "STATUS_SILENT"},
		}},
		Texts: []Name{{Value: 0, Name: "all is well"}, {Value: 1, Name: "it went wrong"}},
		Other: "unknown",
	}
	access = &Flags{Type: "Access", Names: []Name{
		{Value: 0, Name: "ACCESS_NONE"},
		{Value: 1, Name: "ACCESS_READ"},
		{Value: 2, Name: "ACCESS_WRITE"},
		{Value: 2, Name: "ACCESS_CHANGE"},
		{Value: 3, Name: "ACCESS_BOTH"},
		{Value: 1 << 31, Name: "ACCESS_LAST"},
	}}
)

func TestValues(t *testing.T) {
	for v, want := range map[int64]string{
		-1: "LEVEL_BELOW", 0: "LEVEL_ZERO", 7: "LEVEL_SEVEN", 1: "Level(1)", -2: "Level(-2)",
		math.MaxInt32: "Level(2147483647)", math.MinInt32: "Level(-2147483648)",
	} {
		require.Equal(t, want, level.String(v))
		got, err := level.Parse(want)
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
	v, err := level.Parse("LEVEL_ALIAS")
	require.NoError(t, err)
	require.Zero(t, v)
	for _, s := range []string{
		"", "LEVEL", "level_zero", "Level", "Level(", "Level()", "Level(x)", "Level(1", "Level(1))",
		"Other(1)", "Level(2147483648)", "Level(-2147483649)", "Level(99999999999999999999)", "1", " LEVEL_ZERO",
		"LEVEL_SEVEN|LEVEL_SEVEN", "LEVEL_SEVEN|", "Level(+1)", "Level(01)", "Level(-0)",
	} {
		_, err := level.Parse(s)
		require.Error(t, err, "%q", s)
		require.ErrorContains(t, err, "Level: no value is called")
	}
}

// TestModifier has values that one bit makes others of.
func TestModifier(t *testing.T) {
	for v, want := range map[int64]string{
		0x20: "SPEC_ETH", 0x30: "SPEC_IP", 0x100: "SPEC_INNER", 0x120: "SPEC_ETH|SPEC_INNER", 0x130: "SPEC_IP|SPEC_INNER",
		0x1020: "SPEC_ACTION", 0x1120: "SPEC_ACTION|SPEC_INNER", 0: "Spec(0)", 0x50: "Spec(80)", 0x150: "Spec(336)",
		0x320: "Spec(800)", math.MaxUint32: "Spec(4294967295)",
	} {
		require.Equal(t, want, spec.String(v))
		got, err := spec.Parse(want)
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
	v, err := spec.Parse("SPEC_OLD_IP|SPEC_INNER")
	require.NoError(t, err)
	require.EqualValues(t, 0x130, v)
	for _, s := range []string{
		"SPEC_INNER|SPEC_ETH", "SPEC_ETH|SPEC_IP", "SPEC_ETH|", "|SPEC_INNER", "SPEC_ETH | SPEC_INNER", "SPEC_ETH|SPEC_INNER|SPEC_INNER",
		"Spec(-1)", "Spec(4294967296)", "Spec(32)|SPEC_INNER",
	} {
		_, err := spec.Parse(s)
		require.EqualError(t, err, fmt.Sprintf("Spec: no value is called %q", s))
	}
}

func TestTexts(t *testing.T) {
	for v, want := range map[int64]string{
		0: "all is well", 1: "it went wrong", 2: "unknown (2)", 3: "unknown (3)", 1<<32 - 1: "unknown (4294967295)",
	} {
		require.Equal(t, want, status.String(v))
		got, err := status.Parse(want)
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
	for s, want := range map[string]int64{
		"all is well": 0, "it went wrong": 1, "STATUS_BAD": 1, "STATUS_SILENT": 2, "Status(9)": 9,
	} {
		got, err := status.Parse(s)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, s := range []string{"unknown", "unknown (", "unknown ()", "unknown (x)", "unknown (01)", "unknown (-1)", "unknown (3", "unknown(3)"} {
		_, err := status.Parse(s)
		require.EqualError(t, err, fmt.Sprintf("Status: no value is called %q", s))
	}
}

func TestFlags(t *testing.T) {
	for v, want := range map[uint32]string{
		0: "0", 1: "ACCESS_READ", 2: "ACCESS_WRITE", 3: "ACCESS_READ|ACCESS_WRITE", 4: "0x4", 0x45: "ACCESS_READ|0x44",
		1 << 31: "ACCESS_LAST", 1<<31 | 2: "ACCESS_WRITE|ACCESS_LAST", 1<<31 | 1<<30: "ACCESS_LAST|0x40000000",
	} {
		require.Equal(t, want, access.String(v))
		got, err := access.Parse(want)
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
	for s, want := range map[string]uint32{
		"ACCESS_NONE": 0, "ACCESS_BOTH": 3, "ACCESS_CHANGE": 2, " ACCESS_READ | ACCESS_WRITE ": 3, "8": 8, "0b11": 3,
		"ACCESS_READ|ACCESS_READ": 1,
	} {
		got, err := access.Parse(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for _, s := range []string{"", "|", "ACCESS_READ|", "access_read", "ACCESS_READ,ACCESS_WRITE", "-1", "0x100000000"} {
		_, err := access.Parse(s)
		require.Error(t, err, "%q", s)
		require.ErrorContains(t, err, "Access: no flag is called")
	}
}

// TestWide has enums of 64 bits.
func TestWide(t *testing.T) {
	wide := Values{Type: "Wide", Wide: true, Names: []Name{{Value: 1 << 40, Name: "WIDE"}, {Value: math.MinInt64, Name: "TOP"}}}
	for v, want := range map[int64]string{1 << 40: "WIDE", math.MinInt64: "TOP", -1: "Wide(18446744073709551615)", 7: "Wide(7)"} {
		require.Equal(t, want, wide.String(v))
		got, err := wide.Parse(want)
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
	_, err := wide.Parse("Wide(-1)")
	require.ErrorContains(t, err, "Wide: no value is called")

	flags := Flags64{Type: "Flags", Names: []Name{{Value: 1, Name: "LOW"}, {Value: math.MinInt64, Name: "TOP"}}}
	for v, want := range map[uint64]string{0: "0", 1<<63 | 1: "LOW|TOP", 1<<63 | 6: "TOP|0x6"} {
		require.Equal(t, want, flags.String(v))
		text, err := flags.MarshalText(v)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
		got, err := flags.Parse(want)
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
	_, err = flags.Parse("0x10000000000000000")
	require.ErrorContains(t, err, "Flags: no flag is called")
}

// FuzzParse checks that no text panics, and that what a text was understood
// as is printed so that it can be read again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "LEVEL_SEVEN", "Level(-1)", "SPEC_IP|SPEC_INNER", "Spec(9)", "Level(4294967295)", "all is well", "unknown (9)", "Status(2)",
		"ACCESS_READ|ACCESS_WRITE|0x40", "0", "|", strings.Repeat("0x1|", 100) + "1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := level.Parse(s); err == nil {
			again, err := level.Parse(level.String(v))
			require.NoError(t, err)
			require.Equal(t, v, again)
		}
		if v, err := spec.Parse(s); err == nil {
			again, err := spec.Parse(spec.String(v))
			require.NoError(t, err)
			require.Equal(t, v, again)
		}
		if v, err := status.Parse(s); err == nil {
			again, err := status.Parse(status.String(v))
			require.NoError(t, err)
			require.Equal(t, v, again)
		}
		if v, err := access.Parse(s); err == nil {
			again, err := access.Parse(access.String(v))
			require.NoError(t, err)
			require.Equal(t, v, again)
		}
	})
}

// FuzzFlags checks that every set of flags comes back.
func FuzzFlags(f *testing.F) {
	f.Add(uint32(0))
	f.Add(uint32(math.MaxUint32))
	f.Fuzz(func(t *testing.T, v uint32) {
		got, err := access.Parse(access.String(v))
		require.NoError(t, err)
		require.Equal(t, v, got)
	})
}

func TestMarshalText(t *testing.T) {
	for v, want := range map[int64]string{0: "all is well", 2: "STATUS_SILENT", 3: "Status(3)", 1<<32 - 1: "Status(4294967295)"} {
		text, err := status.MarshalText(v)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
		back, err := status.Parse(want)
		require.NoError(t, err)
		require.Equal(t, v, back)
	}
	text, err := level.MarshalText(7)
	require.NoError(t, err)
	require.Equal(t, "LEVEL_SEVEN", string(text))
	text, err = access.MarshalText(3)
	require.NoError(t, err)
	require.Equal(t, access.String(3), string(text))
}
