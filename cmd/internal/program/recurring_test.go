// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Thousands of events give few lines, until there is an event of another kind.
func TestRecurring(t *testing.T) {
	var r Recurring
	var told []string
	tell := func(text string) { told = append(told, text) }
	for i := range 2100 {
		r.Tell(tell, fmt.Sprint("refused ", i+1))
	}
	require.Len(t, told, 10+8)
	require.Equal(t, "refused 10", told[9])
	require.Equal(t, "refused 16 (number 16 of this kind in a row)", told[10])
	require.Equal(t, "refused 32 (number 32 of this kind in a row)", told[11])
	require.Equal(t, "refused 2048 (number 2048 of this kind in a row)", told[17])
	r.Reset()
	r.Tell(tell, "refused again")
	require.Equal(t, "refused again", told[18])
}
