// SPDX-License-Identifier: Apache-2.0

package cerr

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The open files are counted although there is no descriptor to do so with.
func TestDescriptors(t *testing.T) {
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	low := before
	low.Cur = 64
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low))
	defer func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)) }()
	require.NoError(t, WithFiles(nil))
	plain := os.NewSyscallError("socket", syscall.EMFILE)
	require.Same(t, plain, WithFiles(plain), "the look does not confirm it")

	var files []*os.File
	defer func() {
		for _, f := range files {
			require.NoError(t, f.Close())
		}
	}()
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			require.ErrorIs(t, err, syscall.EMFILE)
			break
		}
		files = append(files, f)
	}
	open, most, ok := descriptors()
	require.True(t, ok)
	require.Equal(t, 64, open)
	require.Equal(t, 64, most)
	require.Equal(t, 64, countDescriptors(64), "as before Linux 6.2")

	err := WithFiles(plain)
	require.ErrorIs(t, err, syscall.EMFILE)
	require.EqualError(t, err, "socket: too many open files: this process has 64 of at most 64 files open; see ulimit -n"+Doctor)
	other := errors.New("other")
	require.Same(t, other, WithFiles(other))
	require.Equal(t, "this process has 64 of at most 64 files open; see ulimit -n"+Doctor, hint("ibv_create_comp_channel", syscall.EMFILE))
}
