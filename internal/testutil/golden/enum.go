// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"encoding"
	"fmt"
	"math"
	"math/bits"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/enum"
)

// EnumCase has the tests of one enum type of a generated package.
type EnumCase struct {
	goName string
	names  func(t *testing.T)           // tests every name and value
	number func(t *testing.T, n uint32) // tests that parsing the text of n returns n
	text   func(t *testing.T, s string) // tests that s is refused or stands for one value
}

// Enum returns the tests of the enum type T. parse is the parser of T. table is
// an *enum.Values, *enum.Texts or *enum.Flags with the names of the values.
func Enum[T interface {
	~int32 | ~uint32 | ~int64 | ~uint64
	String() string
	MarshalText() ([]byte, error)
}](parse func(string) (T, error), table any,
) EnumCase {
	e := describe(table)
	back := func(t *testing.T, v T) {
		t.Helper()
		var again T
		text, err := v.MarshalText()
		require.NoError(t, err)
		require.NoError(t, any(&again).(encoding.TextUnmarshaler).UnmarshalText(text))
		require.Equal(t, v, again)
		s := v.String()
		got, err := parse(s)
		require.NoError(t, err)
		require.Equal(t, v, got, s)
	}
	return EnumCase{
		goName: e.goName,
		names: func(t *testing.T) {
			require.NotEmpty(t, e.names)
			for _, n := range e.names {
				got, err := parse(n.Name)
				require.NoError(t, err)
				require.Equal(t, T(n.Value), got, n.Name)
				require.Equal(t, e.want(n.Value), T(n.Value).String())
				back(t, T(n.Value-1))
				back(t, T(n.Value+1))
			}
			for _, v := range e.combinations() {
				require.Equal(t, e.want(v), T(v).String())
				back(t, T(v))
			}
		},
		number: func(t *testing.T, n uint32) { back(t, T(n)) },
		text: func(t *testing.T, s string) {
			v, err := parse(s)
			if err != nil {
				require.ErrorContains(t, err, e.goName+": no ")
				require.ErrorContains(t, err, "is called")
				require.Zero(t, v)
				return
			}
			back(t, v)
			if strings.HasPrefix(s, e.goName+"(") {
				require.Equal(t, s, fmt.Sprintf("%s(%d)", e.goName, v))
			}
		},
	}
}

// TestEnums runs the tests of all enum types of a package.
func TestEnums(t *testing.T, cases []EnumCase) {
	for _, c := range cases {
		t.Run(c.goName, func(t *testing.T) {
			c.names(t)
			for _, n := range []uint32{0, 1, math.MaxInt32, 1 << 31, math.MaxUint32} {
				c.number(t, n)
			}
			for _, s := range []string{"", "no such name", "|", c.goName, c.goName + "()", c.goName + "(4294967296)", c.goName + "(-1)"} {
				c.text(t, s)
			}
		})
	}
}

// FuzzEnums passes a text to every parser of a package, and a number to every
// String method.
func FuzzEnums(f *testing.F, cases []EnumCase) {
	for i, c := range cases {
		f.Add(c.goName+"(7)", uint32(i))
		f.Add(c.goName+"(-0147483648)", uint32(1)<<(i%32))
	}
	f.Add("IBV_FLOW_SPEC_ETH|IBV_FLOW_SPEC_INNER", uint32(math.MaxUint32))
	f.Add(" IBV_SEND_FENCE | 0x40|010", uint32(0x120))
	f.Fuzz(func(t *testing.T, s string, n uint32) {
		for _, c := range cases {
			c.text(t, s)
			c.number(t, n)
		}
	})
}

// described has the contents of an enum.Values, enum.Texts or enum.Flags in a
// common form.
type described struct {
	goName   string
	names    []enum.Name
	texts    map[int64]string // the text of each value; only for enum.Texts
	other    string           // the text before the number of any other value; only for enum.Texts
	modifier int64
	flags    bool
	mask     uint64 // bits that a value of flags may have
}

// describe returns the contents of a table.
func describe(table any) *described {
	switch e := table.(type) {
	case *enum.Flags:
		return &described{goName: e.Type, names: e.Names, flags: true, mask: math.MaxUint32}
	case *enum.Flags64:
		return &described{goName: e.Type, names: e.Names, flags: true, mask: math.MaxUint64}
	case *enum.Texts:
		d := &described{goName: e.Type, names: e.Names, other: e.Other, texts: map[int64]string{}}
		for _, text := range e.Texts {
			d.texts[text.Value] = text.Name
		}
		return d
	case *enum.Values:
		return &described{goName: e.Type, names: e.Names, modifier: e.Modifier}
	}
	panic(fmt.Sprintf("%T is no table of an enum", table))
}

// first returns the first name of a value.
func (d *described) first(v int64) string {
	for _, n := range d.names {
		if n.Value == v {
			return n.Name
		}
	}
	return ""
}

// want returns the text that String must return for v, which is a named value
// or a combination of named values.
func (d *described) want(v int64) string {
	switch {
	case d.texts != nil && d.texts[v] != "":
		return d.texts[v]
	case d.texts != nil:
		return fmt.Sprintf("%s (%d)", d.other, v)
	case d.flags:
		return d.set(uint64(v) & d.mask)
	case d.first(v) == "":
		return d.first(v&^d.modifier) + "|" + d.first(d.modifier)
	}
	return d.first(v)
}

// set returns the names of the bits of v, in the order of the header, and a
// number for the bits without a name.
func (d *described) set(v uint64) string {
	var parts []string
	for _, n := range d.names {
		if bit := uint64(n.Value) & d.mask; bits.OnesCount64(bit) == 1 && v&bit != 0 {
			parts = append(parts, n.Name)
			v &^= bit
		}
	}
	if v != 0 || len(parts) == 0 {
		parts = append(parts, strings.Replace(fmt.Sprintf("%#x", v), "0x0", "0", 1))
	}
	return strings.Join(parts, "|")
}

// combinations returns values that combine named ones: all sets of flags, or
// all pairs if there are many flags, and all values with the modifier.
func (d *described) combinations() []int64 {
	if d.flags && len(d.names) <= 10 {
		return d.sets()
	}
	var out []int64
	for _, a := range d.names {
		for _, b := range d.names {
			if d.flags || d.modifier != 0 && b.Value == d.modifier {
				out = append(out, a.Value|b.Value)
			}
		}
	}
	return out
}

// sets returns all combinations of the named values.
func (d *described) sets() []int64 {
	out := []int64{0}
	for _, n := range d.names {
		for _, v := range out {
			out = append(out, v|n.Value)
		}
	}
	return out
}
