// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A node spares acknowledgements from the time that a queue pair sends without
// waiting for one, until a queue pair waits.
func TestSparedAcks(t *testing.T) {
	n := newNode(&program{}, newDoorbell())
	m := newMachine(n)
	m.Spare()
	require.True(t, m.spares)
	m.Await(1)
	m.Await(1)
	require.False(t, m.spares)
	m.Await(-1)
	m.Spare()
	require.False(t, m.spares, "one waits still")
	m.Await(-1)
	require.False(t, m.spares, "the next request may wait again")
	m.Spare()
	require.True(t, m.spares)
}
