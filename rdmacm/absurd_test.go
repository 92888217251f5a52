// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// Allocating more memory than the system has returns an error and does not end
// the program.
func TestAllocTooMuch(t *testing.T) {
	d := needDevice(t)
	client, _ := connect(t, d.IPv4, nil, nil)
	_, err := client.Alloc(1<<45, 0)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "allocate 35184372088832 bytes")
	require.NoError(t, client.Err())
}

// Check, Dial and Accept name the field of the config that has a wrong value.
// Dial does so before it looks for the peer.
func TestErrorsNameFields(t *testing.T) {
	d := needDevice(t)
	cq, srq := new(ibverbs.CQ), new(ibverbs.SRQ)
	prepare := func(*rdmacm.Conn) (*ibverbs.QP, error) { return nil, errors.New("was called") }
	for field, config := range map[string]rdmacm.Config{
		"Config.AckTimeout is -1s, not from 0 to 2h26m36.093022208s": {AckTimeout: -time.Second},
		"Config.AckTimeout is 3h0m0s, not from 0 to":                 {AckTimeout: 3 * time.Hour},
		"Config.MinRNRTimer is -1ns, not from 0 to 655.36ms":         {MinRNRTimer: -1},
		"Config.MinRNRTimer is 1s, not from 0":                       {MinRNRTimer: time.Second},
		"Config.SendQueue is -1, not from 0":                         {SendQueue: -1},
		"Config.RecvQueue is -1, not from 0":                         {RecvQueue: -1},
		"Config.Segments is -1, not from 0":                          {Segments: -1},
		"Config.MaxInline is 1099511627776, not from 0":              {MaxInline: 1 << 40},
		"Config.MessageSize is -1, not from 0":                       {MessageSize: -1},
		"Config.MessageSize is 4294967296, not from 0":               {MessageSize: 1 << 32},
		"Config.MessageSize cannot be used with a PreparedQP":        {Queues: &rdmacm.PreparedQP{Prepare: prepare}, MessageSize: 1},
		"the PreparedQP or its Prepare is nil":                       {Queues: &rdmacm.PreparedQP{}},
		"Config.MessageSize cannot be used with PolledQueues.SRQ":    {Queues: &rdmacm.PolledQueues{SendCQ: cq, RecvCQ: cq, SRQ: srq}, MessageSize: 1},
		"Config.Queues is a nil *Pool":                               {Queues: (*rdmacm.Pool)(nil)},
		"Config.Queues is a nil *PolledQueues":                       {Queues: (*rdmacm.PolledQueues)(nil)},
		"Pool.Receives is -1":                                        {Queues: &rdmacm.Pool{Receives: -1}},
		"PolledQueues.SendCQ or PolledQueues.RecvCQ is nil":          {Queues: &rdmacm.PolledQueues{SendCQ: cq}},
		"Config.SendQueue is 2097152 and Config.RecvQueue is 16":     {Queues: &rdmacm.PolledQueues{SendCQ: cq, RecvCQ: cq}, SendQueue: 1 << 21},
	} {
		t.Run(field, func(t *testing.T) {
			needDevice(t)
			ln := listenOn(t, d.IPv4)
			err := config.Check()
			require.ErrorContains(t, err, field)
			_, ok := errors.AsType[*ibverbs.ArgumentError](err)
			require.True(t, ok)
			_, err = rdmacm.Dial(bounded(t), "nothing.invalid:1", inPool(&config))
			require.ErrorContains(t, err, field)
			_, err = rdmacm.Listen(bounded(t), d.IPv4.String()+":0", &rdmacm.ListenConfig{Config: config})
			require.ErrorContains(t, err, field)
			result := acceptOne(bounded(t), ln, &config)
			_, err = rdmacm.Dial(bounded(t), ln.Addr().String(), inPool(nil))
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			require.ErrorContains(t, (<-result).err, field)
		})
	}
	require.NoError(t, (*rdmacm.Config)(nil).Check())
	require.NoError(t, (&rdmacm.Config{
		KeepAlive: -1, HandshakeTimeout: -1, Linger: -1, RetryCount: -1, PeerRNRRetryCount: -1, ReadDepth: -1, Spin: -1,
		MinRNRTimer: time.Nanosecond, AckTimeout: time.Nanosecond,
	}).Check())
	require.NoError(t, (&rdmacm.Config{Queues: &rdmacm.PreparedQP{Prepare: prepare}, SendQueue: -1}).Check(), "is ignored")
}
