// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// answers returns the data of those that have answered, and the errors.
func answers(ctx context.Context, t *testing.T) (data, errs []string) {
	t.Helper()
	all, err := Ask(ctx)
	require.NoError(t, err)
	for _, a := range all {
		require.Equal(t, os.Getpid(), a.PID)
		if a.Err != nil {
			errs = append(errs, a.Err.Error())
		} else {
			data = append(data, string(a.Data))
		}
	}
	return data, errs
}

// A process that publishes is asked until it ends. One that does not answer
// does not hold up others, and one in another network is not asked.
func TestAsk(t *testing.T) {
	one, err := Publish(func() []byte { return []byte("one") })
	require.NoError(t, err)
	two, err := Publish(func() []byte { return []byte("two") })
	require.NoError(t, err)
	elsewhere, err := net.Listen("unix", fmt.Sprintf("@verbena-softroce-%016x/stat/%016x", rand.Uint64(), rand.Uint64()))
	require.NoError(t, err)
	defer elsewhere.Close()
	for range 20 { // nothing stays after an answer
		data, errs := answers(t.Context(), t)
		require.ElementsMatch(t, []string{"one", "two"}, data)
		require.Empty(t, errs)
	}

	silent, err := net.Listen("unix", fmt.Sprintf("%sstat/%016x", Prefix(), rand.Uint64()))
	require.NoError(t, err)
	defer silent.Close()
	data, errs := answers(t.Context(), t)
	require.ElementsMatch(t, []string{"one", "two"}, data)
	require.Equal(t, []string{"the process does not answer"}, errs)

	require.NoError(t, one.Close())
	require.NoError(t, silent.Close())
	data, errs = answers(t.Context(), t)
	require.Equal(t, []string{"two"}, data)
	require.Empty(t, errs)
	require.NoError(t, two.Close())
	data, errs = answers(t.Context(), t)
	require.Empty(t, data)
	require.Empty(t, errs)
}
