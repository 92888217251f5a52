// SPDX-License-Identifier: Apache-2.0

package caps

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// QPTypes is a set of queue pair types.
type QPTypes uint32

// Has reports whether the type is in the set.
func (q QPTypes) Has(t libibverbs.QpType) bool { return t < 32 && q&(1<<t) != 0 }

// String returns the names of the types, joined with |.
func (q QPTypes) String() string {
	if q == 0 {
		return "0"
	}
	var parts []string
	for rest := uint32(q); rest != 0; rest &= rest - 1 {
		parts = append(parts, libibverbs.QpType(bits.TrailingZeros32(rest)).String())
	}
	return strings.Join(parts, "|")
}

// MarshalText returns the text of String.
func (q QPTypes) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// UnmarshalText parses the output of String.
func (q *QPTypes) UnmarshalText(text []byte) error {
	if string(text) == "0" {
		*q = 0
		return nil
	}
	var all QPTypes
	for part := range strings.SplitSeq(string(text), "|") {
		t, err := libibverbs.ParseQpType(part)
		if err != nil {
			return err
		}
		if t >= 32 {
			return fmt.Errorf("QP type %s cannot be in a set, which holds types below 32", t)
		}
		all |= 1 << t
	}
	*q = all
	return nil
}
