// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && amd64 && !race

package perf

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/instructions"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// conversations are requests and their answers over the device in user space,
// of which this process has both ends.
func conversations(t *testing.T) map[string]func() error {
	d := testdevice.Require(t)
	operations := map[string]func() error{}
	for _, w := range ways {
		if w.network == "tcp" || w.protocol != "64 B" {
			continue
		}
		var c client
		operations[w.network] = func() error {
			if c != nil {
				return c.ask()
			}
			address, err := serveClients(w, d.IPv4.String())
			require.NoError(t, err)
			all, err := connectClients(context.Background(), w, address, 1)
			require.NoError(t, err)
			c = all[0]
			return nil
		}
	}
	return operations
}

// TestCounted is what TestInstructions runs.
func TestCounted(t *testing.T) { instructions.Run(t, conversations) }

// A request and its answer take as many instructions as they did.
func TestInstructions(t *testing.T) { instructions.Check(t, conversations) }
