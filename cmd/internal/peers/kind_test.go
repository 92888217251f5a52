// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestKind(t *testing.T) {
	for text, extended := range map[string]bool{"r": false, "RC": false, "x": true, "X": true, "xrc": true} {
		k := Kind{Extended: !extended}
		require.NoError(t, k.Set(text))
		require.Equal(t, extended, k.Extended, text)
	}
	for _, text := range []string{"", " ", "u", "-", "ξ"} {
		k := Kind{Extended: true}
		require.EqualError(t, k.Set(text), "expected r or x", text)
		require.Equal(t, Kind{Extended: true}, k)
	}
}

func TestHints(t *testing.T) {
	k := new(Kind)
	require.Equal(t, "r", k.String())
	require.Equal(t, &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP, QPType: ibverbs.QPTypeRC}, k.Hints(ibverbs.QPTypeXRCSend))
	k.Extended = true
	require.Equal(t, "x", k.String())
	require.Equal(t, &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceIB, QPType: ibverbs.QPTypeXRCSend}, k.Hints(ibverbs.QPTypeXRCSend))
}
