// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// A flushed request does not hide the end of the connection, whose event may be
// read later.
func TestCause(t *testing.T) {
	ended := errors.New("disconnected")
	flushed := &ibverbs.WCError{Status: ibverbs.WCFlushed}
	refused := &ibverbs.WCError{Status: ibverbs.WCRemoteAccess}
	for name, tt := range map[string]struct {
		err  error
		ends time.Duration // 0 means that the connection does not end
		want error
	}{
		"ends after the flush":         {flushed, time.Second, ended},
		"flushed without an end":       {flushed, 0, flushed},
		"an error of its own":          {refused, time.Second, refused},
		"an error of another function": {context.Canceled, time.Second, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &connection{}
				c.life, c.end = context.WithCancelCause(t.Context())
				if tt.ends > 0 {
					time.AfterFunc(tt.ends, func() { c.end(ended) })
				}
				require.Equal(t, tt.want, c.cause(tt.err))
				c.end(nil)
			})
		})
	}
}
