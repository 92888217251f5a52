// SPDX-License-Identifier: Apache-2.0

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
	Type     string // Go's name of the type
	Signed   bool   // it is an int32, not a uint32
	Names    []Name // in the header's order
	Modifier int64  // a bit that is added to other values; 0 means none
}

// String returns the name of the C enumerator, the first if there are several,
// or Type(n) for a value without one. For a value with the modifier, it returns
// NAME|MODIFIER.
func (e *Values) String(v int64) string {
	if name, ok := e.name(v); ok {
		return name
	}
	if name, ok := e.name(v &^ e.Modifier); ok {
		modifier, _ := e.name(e.Modifier)
		return name + "|" + modifier
	}
	return e.Type + "(" + strconv.FormatInt(v, 10) + ")"
}

func (e *Values) name(v int64) (string, bool) {
	for _, n := range e.Names {
		if n.Value == v {
			return n.Name, true
		}
	}
	return "", false
}

// MarshalText returns the text of String.
func (e *Values) MarshalText(v int64) ([]byte, error) { return []byte(e.String(v)), nil }

// Parse parses the results of String, and the other names of a value.
func (e *Values) Parse(s string) (int64, error) {
	if v, ok := e.value(s); ok {
		return v, nil
	}
	if base, modifier, ok := strings.Cut(s, "|"); ok && e.Modifier != 0 {
		v, known := e.value(base)
		bit, ok := e.value(modifier)
		if known && ok && bit == e.Modifier {
			return v | bit, nil
		}
	}
	if v, ok := e.numbered(s, e.Type+"("); ok {
		return v, nil
	}
	return 0, fmt.Errorf("%s: no value is called %q", e.Type, s)
}

// numbered reads a number between before and a closing parenthesis.
func (e *Values) numbered(s, before string) (int64, bool) {
	rest, ok := strings.CutPrefix(s, before)
	if !ok {
		return 0, false
	}
	digits, ok := strings.CutSuffix(rest, ")")
	v, err := e.number(digits)
	return v, ok && err == nil && strconv.FormatInt(v, 10) == digits
}

func (e *Values) value(name string) (int64, bool) {
	for _, n := range e.Names {
		if n.Name == name {
			return n.Value, true
		}
	}
	return 0, false
}

// number reads a number that the type can hold.
func (e *Values) number(s string) (int64, error) {
	if e.Signed {
		return strconv.ParseInt(s, 10, 32)
	}
	v, err := strconv.ParseUint(s, 10, 32)
	return int64(v), err
}

// UnmarshalText parses like Parse, into a type of 8 or 32 bits.
func UnmarshalText[T ~uint8 | ~uint32](e *Values, text []byte, to *T) error {
	v, err := e.Parse(string(text))
	if err != nil {
		return err
	}
	if int64(T(v)) != v {
		return fmt.Errorf("%s: %d is out of range", e.Type, v)
	}
	*to = T(v)
	return nil
}

// Texts is an enum for which a C function returns texts.
type Texts struct {
	Values
	Texts []Name
	Other string // the text of every other value
}

// String returns the text of the C function. For a value without a text, the
// value follows in parentheses.
func (e *Texts) String(v int64) string {
	for _, t := range e.Texts {
		if t.Value == v {
			return t.Name
		}
	}
	return e.Other + " (" + strconv.FormatInt(v, 10) + ")"
}

// MarshalText returns the text of String. For a value without a text, it
// returns the name of the C enumerator or Type(n).
func (e *Texts) MarshalText(v int64) ([]byte, error) {
	for _, t := range e.Texts {
		if t.Value == v {
			return []byte(t.Name), nil
		}
	}
	return e.Values.MarshalText(v)
}

// Parse parses the results of String, and all that Values.Parse does.
func (e *Texts) Parse(s string) (int64, error) {
	for _, t := range e.Texts {
		if t.Name == s {
			return t.Value, nil
		}
	}
	if v, ok := e.numbered(s, e.Other+" ("); ok {
		return v, nil
	}
	return e.Values.Parse(s)
}

// Flags is an enum whose values are combined with |.
type Flags struct {
	Type  string
	Names []Name
}

// String returns the names of the set bits, joined with |. Bits without a name
// follow as one hexadecimal number. The result for no bits is 0.
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

// MarshalText returns the text of String.
func (e *Flags) MarshalText(v uint32) ([]byte, error) { return []byte(e.String(v)), nil }

// Parse parses the results of String, and names of combinations.
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
