// SPDX-License-Identifier: Apache-2.0

// Package enum implements the String methods and the parsers of the generated
// enum types.
package enum

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Name is a C enumerator and its value.
type Name struct {
	Value int64
	Name  string
}

// Values is an enum whose values cannot be combined.
type Values struct {
	Type     string // name of the Go type
	Signed   bool   // whether the type is an int32 and not a uint32
	Wide     bool   // whether it has 64 bits
	Names    []Name // enumerators in the order of the header
	Modifier int64  // bit that may be combined with any value; 0: none
}

// String returns the name of the C enumerator with the value v, the first if
// there are several. If there is none, it returns Type(n), or NAME|MODIFIER for
// a value combined with the modifier.
func (e *Values) String(v int64) string {
	if name, ok := e.name(v); ok {
		return name
	}
	if name, ok := e.name(v &^ e.Modifier); ok {
		modifier, _ := e.name(e.Modifier)
		return name + "|" + modifier
	}
	return e.Type + "(" + e.decimal(v) + ")"
}

// decimal returns a value in decimal notation. For an unsigned type of 64 bits,
// v has the bits of a uint64.
func (e *Values) decimal(v int64) string {
	if e.Wide && !e.Signed {
		return strconv.FormatUint(uint64(v), 10)
	}
	return strconv.FormatInt(v, 10)
}

// name returns the first name of a value.
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

// Parse returns the value for a result of String or for any other name of the
// value.
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

// numbered parses a text that consists of before, a decimal number and a
// closing parenthesis, such as Type(3). It returns the number.
func (e *Values) numbered(s, before string) (int64, bool) {
	rest, ok := strings.CutPrefix(s, before)
	if !ok {
		return 0, false
	}
	digits, ok := strings.CutSuffix(rest, ")")
	v, err := e.number(digits)
	return v, ok && err == nil && e.decimal(v) == digits
}

// value returns the value of a name.
func (e *Values) value(name string) (int64, bool) {
	for _, n := range e.Names {
		if n.Name == name {
			return n.Value, true
		}
	}
	return 0, false
}

// number parses a decimal number that the type can hold.
func (e *Values) number(s string) (int64, error) {
	bits := 32
	if e.Wide {
		bits = 64
	}
	if e.Signed {
		return strconv.ParseInt(s, 10, bits)
	}
	v, err := strconv.ParseUint(s, 10, bits)
	return int64(v), err
}

// UnmarshalText parses text like Parse, and stores the value in to, of a type
// with 8 or 32 bits.
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

// Texts is an enum for whose values a C function returns texts.
type Texts struct {
	Values
	Texts []Name
	Other string // text for every other value
}

// String returns the text that the C function returns for v. If that is the
// text for all other values, v follows in parentheses.
func (e *Texts) String(v int64) string {
	for _, t := range e.Texts {
		if t.Value == v {
			return t.Name
		}
	}
	return e.Other + " (" + strconv.FormatInt(v, 10) + ")"
}

// MarshalText returns the text that the C function returns for v. If there is
// none for v alone, it returns the name of the C enumerator, or Type(n).
func (e *Texts) MarshalText(v int64) ([]byte, error) {
	for _, t := range e.Texts {
		if t.Value == v {
			return []byte(t.Name), nil
		}
	}
	return e.Values.MarshalText(v)
}

// Parse returns the value for a result of String or MarshalText, or for any
// name that Values.Parse knows.
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

// Flags is an enum whose values are bits that are combined with |.
type Flags struct {
	Type  string
	Names []Name
}

// String returns the names of the bits that are set, joined with |. Bits
// without a name follow as one hexadecimal number. If no bit is set, it returns
// 0.
func (e *Flags) String(v uint32) string { return join(e.Names, uint64(v), math.MaxUint32) }

// MarshalText returns the text of String.
func (e *Flags) MarshalText(v uint32) ([]byte, error) { return []byte(e.String(v)), nil }

// Parse parses the results of String, and names of combinations.
func (e *Flags) Parse(s string) (uint32, error) {
	v, err := split(e.Type, e.Names, s, 32)
	return uint32(v), err
}

// Flags64 is an enum of 64 bits whose values are combined with |.
type Flags64 struct {
	Type  string
	Names []Name
}

// String does what Flags.String does.
func (e *Flags64) String(v uint64) string { return join(e.Names, v, math.MaxUint64) }

// MarshalText returns the text of String.
func (e *Flags64) MarshalText(v uint64) ([]byte, error) { return []byte(e.String(v)), nil }

// Parse parses the results of String, and names of combinations.
func (e *Flags64) Parse(s string) (uint64, error) { return split(e.Type, e.Names, s, 64) }

func join(names []Name, v, mask uint64) string {
	if v == 0 {
		return "0"
	}
	var parts []string
	for _, n := range names {
		if bit := uint64(n.Value) & mask; bits.OnesCount64(bit) == 1 && v&bit != 0 {
			parts = append(parts, n.Name)
			v &^= bit
		}
	}
	if v != 0 {
		parts = append(parts, fmt.Sprintf("%#x", v))
	}
	return strings.Join(parts, "|")
}

func split(enum string, names []Name, s string, size int) (v uint64, err error) {
	for part := range strings.SplitSeq(s, "|") {
		bit, err := flag(enum, names, strings.TrimSpace(part), size)
		if err != nil {
			return 0, err
		}
		v |= bit
	}
	return v, nil
}

func flag(enum string, names []Name, part string, size int) (uint64, error) {
	for _, n := range names {
		if n.Name == part {
			return uint64(n.Value), nil
		}
	}
	n, err := strconv.ParseUint(part, 0, size)
	if err != nil {
		return 0, fmt.Errorf("%s: no flag is called %q", enum, part)
	}
	return n, nil
}
