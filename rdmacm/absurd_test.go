// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// Memory that the system does not have is an error, and does not end the program.
func TestAllocTooMuch(t *testing.T) {
	d := needDevice(t)
	client, _ := connect(t, d.IPv4, nil, nil)
	_, err := client.Alloc(1<<45, 0)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "allocate 35184372088832 bytes")
	require.NoError(t, client.Err())
}

// The error of a field of the config names it.
func TestErrorsNameFields(t *testing.T) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	_, err := rdmacm.Dial(bounded(t), ln.Addr().String(), &rdmacm.Config{AckTimeout: -time.Second})
	require.ErrorContains(t, err, "Config.AckTimeout: ")
	_, err = rdmacm.Dial(bounded(t), ln.Addr().String(), &rdmacm.Config{Segments: 1 << 30})
	require.Error(t, err)
}
