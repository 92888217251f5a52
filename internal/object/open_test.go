// SPDX-License-Identifier: Apache-2.0

package object

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOpen(t *testing.T) {
	require.Empty(t, Open())
	b := made(t, "b")
	made(t, "a")
	unlisted := new(Object)
	unlisted.InitUnlisted("unlisted")
	require.Equal(t, []string{"a", "b"}, Open())
	require.NoError(t, b.Close(nil, destroyed))
	require.Equal(t, []string{"a"}, Open())
}

func TestTrace(t *testing.T) {
	before := tracing.Load()
	Trace(true)
	defer Trace(before)
	made(t, "traced")
	require.Len(t, Open(), 1)
	require.Regexp(t, `^traced, opened at\n\t.*/object\.made .*lifetime_test\.go:\d+\n\t.*TestTrace .*open_test\.go:\d+`, Open()[0])
}
