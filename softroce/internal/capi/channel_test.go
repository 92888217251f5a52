// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// An event for which the channel's pipe has no room is sent when there is some.
func TestEventWithoutRoom(t *testing.T) {
	r := newRig(t)
	channel, err := libibverbs.CreateCompChannel(r.c)
	require.NoError(t, err)
	cq, err := libibverbs.CreateCq(r.c, 8, nil, channel, 0)
	require.NoError(t, err)
	qp := r.qp(libibverbs.IBV_QPT_UD, cq, 8)
	r.ready(qp, 0)
	ah := r.ah()

	l := self()
	l.Lock()
	defer l.Unlock()
	const none = 0 // no queue has this id
	h := l.channels[channel]
	for h.write(none) {
	}
	require.NoError(t, libibverbs.ReqNotifyCq(cq, 0))
	r.postSend(qp, r.part(0, 8), ah, 2) // which no node has: nothing else is due
	for end := time.Now().Add(patience); len(l.late) == 0; {
		l.Advance()
		require.True(t, time.Now().Before(end), "no completion")
	}
	require.True(t, l.SendLate(), "the pipe is full")
	pipe := make([]byte, 1<<20)
	_, err = syscall.Read(int(channel.Fd), pipe)
	require.NoError(t, err)
	require.False(t, l.SendLate())
	require.Empty(t, l.late)
}
