// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// held returns how many files are open, and how many mappings of memory there
// are that processes share.
func held(t *testing.T) (files, mappings int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return len(fds), bytes.Count(maps, []byte("/memfd:"))
}

// Links that are closed leave no files and no memory behind, whichever end
// closes first.
func TestCloseGivesEverythingBack(t *testing.T) {
	end := func(o *owner) {
		o.end()
		o.bell.close() // it is the owner's
	}
	end(own(t, newRecorder())) // so that what is opened once is there
	files, mappings := held(t)
	for round := range 4 {
		var links [3]*owner
		var got [3]*recorder
		for i := range links {
			got[i] = newRecorder()
			links[i] = own(t, got[i])
		}
		for i, from := range links {
			for k, to := range links {
				if i != k {
					from.send(to.Slot(), []byte("hello"))
				}
			}
		}
		for i, r := range got {
			r.until(t, "each link has the frames of the others", func() bool { return len(r.frames) == len(links)-1 })
			require.NotContains(t, r.frames, links[i].Slot())
		}
		for i := range links {
			end(links[(i+round)%len(links)])
		}
	}
	until(t, "what the links have opened is closed", func() bool {
		f, m := held(t)
		return f <= files && m <= mappings
	})
}
