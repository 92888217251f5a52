// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// An event for which the channel's pipe has no room is due soon.
func TestEventWithoutRoom(t *testing.T) {
	r := newRig(t)
	channel, err := libibverbs.CreateCompChannel(r.c)
	require.NoError(t, err)
	cq, err := libibverbs.CreateCq(r.c, 8, nil, channel, 0)
	require.NoError(t, err)
	qp := r.qp(libibverbs.IBV_QPT_UD, cq, 8)
	r.ready(qp, 0)
	ah := r.ah()

	n := self()
	n.mu.Lock()
	defer n.mu.Unlock()
	const nobody = 0 // no queue has this id
	for h := n.channels[channel]; h.tell(nobody); {
	}
	require.NoError(t, libibverbs.ReqNotifyCq(cq, 0))
	r.postSend(qp, r.part(0, 8), ah, 2) // which no node has: nothing else is due
	for end := time.Now().Add(patience); len(n.late) == 0; {
		now := n.now()
		next := n.advance(now)
		if len(n.late) > 0 {
			require.LessOrEqual(t, next, now+time.Millisecond)
		}
		require.True(t, time.Now().Before(end), "no completion")
	}
}
