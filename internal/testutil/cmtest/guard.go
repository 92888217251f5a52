// SPDX-License-Identifier: Apache-2.0

package cmtest

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// Parts of errors that name the step which is missing.
const (
	StepBind    = "bind or resolve the address first"
	StepResolve = "resolve the address first"
	StepRoute   = "resolve the address and the route first"
	StepRequest = "receive a connection request first"
	StepConnect = "connect first"
	StepQP      = "create a queue pair first"
)

// CheckGuard checks the error of a call on an ID in a state. If want is not
// empty, the error's text must contain it.
func CheckGuard(t *testing.T, state, call, want string, err error) {
	t.Helper()
	switch {
	case want != "":
		require.ErrorContains(t, err, want)
	case call == "addresses":
	case state == "closed":
		if !strings.HasPrefix(call, "Accept") && !strings.HasPrefix(call, "Reject") && call != "SetIBPaths" {
			require.ErrorIs(t, err, os.ErrClosed)
		}
		require.Error(t, err)
	}
	var failed *ibverbs.Error
	if errors.As(err, &failed) {
		require.NotEmpty(t, failed.Op)
		require.NotEmpty(t, failed.Object, "%v", err)
	}
}

// GuardObjects returns the objects that a queue pair needs, which are closed at
// the end of the test.
func GuardObjects(t testing.TB, name string) (*ibverbs.PD, *ibverbs.CQ) {
	t.Helper()
	device := Find(t, name)
	require.NotNil(t, device)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 2})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, cq.Close())
		require.NoError(t, pd.Close())
	})
	return pd, cq
}
