// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// peer starts one of hostPrograms on the device in user space.
func peer(t *testing.T, name string, args ...string) *process.Process {
	t.Helper()
	return peerOn(t, "soft", name, args...)
}

// peerOn is like peer, with a value of VERBENA_DEVICE.
func peerOn(t *testing.T, device, name string, args ...string) *process.Process {
	t.Helper()
	cmd := process.Command(t, name, args...)
	cmd.Env = append(cmd.Env, "VERBENA_DEVICE="+device)
	return process.Start(t, cmd)
}

// status returns the exit status of a peer, and prints its error.
func status(stderr io.Writer, err error) int {
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// requested listens, prints the address on stdout, and returns the endpoint of
// the first request.
func requested(ctx context.Context, stdout io.Writer, info rdmacm.AddrInfo) (*endpoint.Endpoint, error) {
	info.Flags = rdmacm.AddrPassive
	ln, err := endpoint.Create(ctx, info, nil, nil)
	if err != nil {
		return nil, err
	}
	if err := ln.Listen(1); err != nil {
		return nil, err
	}
	fmt.Fprintln(stdout, ln.ID().LocalAddr())
	return ln.GetRequest(ctx)
}
