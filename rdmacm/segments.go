// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/sealed"
)

// checkRecv returns an error if the program cannot copy a message to the
// segments, for example because they are not mapped.
func checkRecv(segments []ibverbs.Segment) error {
	for k := range segments {
		if err := sealed.Open(segments[k].Internals()).CheckRecv(k); err != nil {
			return err
		}
	}
	return nil
}

// fill copies a message to segments that have room for it. The segments may be
// from ibverbs.InlineBytes.
func fill(segments []ibverbs.Segment, message []byte) (err error) {
	for k := 0; k < len(segments) && len(message) > 0; k++ {
		if message, err = sealed.Open(segments[k].Internals()).Fill(message); err != nil {
			return err
		}
	}
	return nil
}
