// SPDX-License-Identifier: Apache-2.0

package hotplug

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestContextEndsEvents(t *testing.T) {
	l, err := Listen()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ev := range l.Events(ctx) {
			t.Log(ev)
		}
	}()
	cancel()
	<-ended
	_, err = l.next()
	require.ErrorIs(t, err, os.ErrClosed)
}
