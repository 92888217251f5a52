// SPDX-License-Identifier: Apache-2.0

package counter_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/counter"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// Nil and zero objects answer with an error.
func TestNotMade(t *testing.T) {
	for object, from := range map[string]struct {
		device  *ibverbs.Device
		qp      *ibverbs.QP
		counter *counter.Counter
	}{
		"nil":  {},
		"zero": {&ibverbs.Device{}, &ibverbs.QP{}, &counter.Counter{}},
	} {
		for call, err := range map[string]error{
			"Create":     failed(counter.Create(from.device, counter.Requests)),
			"QueryCaps":  failed(counter.QueryCaps(from.device)),
			"Attach":     from.counter.Attach(from.qp, counter.Sends),
			"Close":      from.counter.Close(),
			"Read":       failed(from.counter.Read()),
			"ReadErrors": failed(from.counter.ReadErrors()),
			"Set":        from.counter.Set(1),
			"SetErrors":  from.counter.SetErrors(1),
			"Add":        from.counter.Add(1),
			"AddErrors":  from.counter.AddErrors(1),
		} {
			require.ErrorIs(t, err, os.ErrInvalid, "%s: %s", object, call)
		}
	}
}

// Soft-RoCE has no counters, and says so.
func TestUnsupported(t *testing.T) {
	found := testdevice.RequireSoftware(t)
	if found.Has(t, testdevice.Counters) {
		return
	}
	testdevice.NoLeaks(t)
	device, err := ibverbs.Open(found.Name)
	require.NoError(t, err)
	defer func() { require.NoError(t, device.Close()) }()
	for name, err := range map[string]error{
		"create": failed(counter.Create(device, counter.Requests)),
		"caps":   failed(counter.QueryCaps(device)),
	} {
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
	}
}

// failed returns the error of a call that returns a value too.
func failed[T any](_ T, err error) error { return err }
