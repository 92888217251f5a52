// Package enum gives the generated enum types their String methods and
// parsers.
package enum

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Name is a C enumerator.
type Name struct {
	Value int64
	Name  string
}

// Values is an enum whose values exclude each other.
type Values struct {
	Type  string // Go's name of the type
	Names []Name // in the header's order
}

// String returns the C enumerator's name, the first if there are several, or
// Type(n) for a value without one.
func (e *Values) String(v int64) string {
	for _, n := range e.Names {
		if n.Value == v {
			return n.Name
		}
	}
	return e.Type + "(" + strconv.FormatInt(v, 10) + ")"
}

// MarshalText is String as encoding.TextMarshaler has it.
func (e *Values) MarshalText(v int64) ([]byte, error) { return []byte(e.String(v)), nil }

// Parse accepts what String returns, and the other names of a value.
func (e *Values) Parse(s string) (int64, error) {
	for _, n := range e.Names {
		if n.Name == s {
			return n.Value, nil
		}
	}
	if rest, ok := strings.CutPrefix(s, e.Type+"("); ok {
		digits, ok := strings.CutSuffix(rest, ")")
		if v, err := parseInt32(digits); ok && err == nil {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%s: no value is called %q", e.Type, s)
}

// Texts is an enum for which the C library has a text of its own.
type Texts struct {
	Values
	Texts []Name
	Other string // for every other value
}

// String returns exactly what the C function prints.
func (e *Texts) String(v int64) string {
	for _, t := range e.Texts {
		if t.Value == v {
			return t.Name
		}
	}
	return e.Other
}

// MarshalText is String, but for a value without a text, which String does not
// tell from others, it is the C enumerator's name or Type(n).
func (e *Texts) MarshalText(v int64) ([]byte, error) {
	for _, t := range e.Texts {
		if t.Value == v {
			return []byte(t.Name), nil
		}
	}
	return e.Values.MarshalText(v)
}

// Parse accepts what String returns, other than the text for unknown values,
// and the C enumerators' names.
func (e *Texts) Parse(s string) (int64, error) {
	for _, t := range e.Texts {
		if t.Name == s {
			return t.Value, nil
		}
	}
	return e.Values.Parse(s)
}

// Flags is an enum whose values are combined with |.
type Flags struct {
	Type  string
	Names []Name
}

// String returns the names of the bits that are set, joined with |; bits
// without a name come last, as one hexadecimal number. No bit at all is 0.
func (e *Flags) String(v uint32) string {
	if v == 0 {
		return "0"
	}
	var parts []string
	for _, n := range e.Names {
		if bit := uint32(n.Value); bits.OnesCount32(bit) == 1 && v&bit != 0 {
			parts = append(parts, n.Name)
			v &^= bit
		}
	}
	if v != 0 {
		parts = append(parts, fmt.Sprintf("%#x", v))
	}
	return strings.Join(parts, "|")
}

// MarshalText is String as encoding.TextMarshaler has it.
func (e *Flags) MarshalText(v uint32) ([]byte, error) { return []byte(e.String(v)), nil }

// Parse accepts what String returns, and names of combinations.
func (e *Flags) Parse(s string) (uint32, error) {
	var v uint32
	for part := range strings.SplitSeq(s, "|") {
		bit, err := e.parsePart(strings.TrimSpace(part))
		if err != nil {
			return 0, err
		}
		v |= bit
	}
	return v, nil
}

func (e *Flags) parsePart(part string) (uint32, error) {
	for _, n := range e.Names {
		if n.Name == part {
			return uint32(n.Value), nil
		}
	}
	n, err := strconv.ParseUint(part, 0, 32)
	if err != nil {
		return 0, fmt.Errorf("%s: no flag is called %q", e.Type, part)
	}
	return uint32(n), nil
}

// parseInt32 reads a number of either signedness.
func parseInt32(s string) (int64, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err == nil && (v < -1<<31 || v > 1<<32-1) {
		err = strconv.ErrRange
	}
	return v, err
}
